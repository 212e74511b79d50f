"""Past one machine: streams and the service on Ray (layer: scale, below the command line).

Nothing is imported here: Ray is an extra, and only who asks for it needs it.
"""
