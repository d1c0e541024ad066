"""MIGraphX: its interface (`program`), installations (`runtime`, `install`) and worker process (`worker`).

No other package imports or loads MIGraphX.
"""
