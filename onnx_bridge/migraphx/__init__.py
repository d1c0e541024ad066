"""MIGraphX behind one interface (`program`), found or installed (`runtime`), in a process of its own (`worker`).

Nothing outside this package imports or loads MIGraphX.
"""
