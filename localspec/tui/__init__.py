"""The terminal chat, `localspec chat`.

Rooms, each importing only those before it: `session` and `rendering`, `widgets`, `screens`,
`control`; `app` puts them together.
"""
