"""Re-rank, verify or judge a search's results: each stage is one dataclass that a YAML names."""

# A stage is the class of its name in the module of its name, but for those that share a module.
SHARED = {
    "cosine": "max_sim",
    **dict.fromkeys(("attribution", "entities", "relevance"), "facts"),
    **dict.fromkeys(("select", "letters"), "verifier"),
}
