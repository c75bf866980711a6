"""Everything the farm takes from Inductor's inside.

Beside compilefarm.graph.targets and compilefarm.artifact.triton_builds this package is the only place that touches
private names of torch. Each use names the file it leans on, and tests/artifact/test_private_torch.py has a canary for
each that says what broke when a release moves it.
"""
