"""Serve an index: a page for people, an API for programs, and a tool for agents."""
