"""Re-rank, verify or judge the results of a search; each stage is a dataclass named in YAML."""

# A stage's class is in the module of its name, except for those that share a module.
SHARED = {
    "cosine": "max_sim",
    **dict.fromkeys(("attribution", "entities", "relevance"), "facts"),
    **dict.fromkeys(("select", "letters"), "verifier"),
}
