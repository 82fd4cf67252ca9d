"""The terminal chat, `localspec chat`.

Subpackages, each importing only those before it: `session` and `rendering`, `widgets`, `screens`,
`control`; `app` combines them.
"""
