"""Serve an index: a page for people, an API for programs, a tool for agents."""
