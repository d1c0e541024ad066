"""onnx-graphsurgeon scripts as passes.

`surgeon` is the pass, and does not need graphsurgeon to be installed. It calls `operation`, which has the `importer`
make a graphsurgeon graph of the model, runs the script, and has the `exporter` make a model of that graph again.
`graph` has the classes that scripts see, `tags` say what their parts stand for, `tensors` and `attributes` convert
values, and `changes` keeps what a script changed.
"""
