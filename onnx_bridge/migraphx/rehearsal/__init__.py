"""The gpu target's passes without a GPU: those that need none run on a program, which ``ref`` then computes.

The gpu target runs about forty passes before it chooses kernels; ``ref`` runs few of them. A fault of theirs is found
here. Not rehearsed are MLIR, MIOpen, hipBLASLt and all kernels, their precision and their memory.
"""
