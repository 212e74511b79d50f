"""Service: a stream over HTTP, with the page that people use (extra ``serve``).

The way of a request: ``gate`` (who may ask, how much, how fast) -> ``routes_*`` (translate) -> ``worker`` (the one
owner of the stream) or the catalog (what people said) -> ``views`` (JSON). ``app`` joins it all, ``server`` runs it.

Nothing here is imported unless somebody serves: it needs FastAPI and uvicorn.
"""
