"""The largest size of tensors that a graph holds."""

# They become literals of the graph, which slow down what handles its text; weights are inputs and not meant here.
MAX_ELEMENTS = 16_384
# A complex number of two doubles is the largest element.
MAX_BYTES = 16 * MAX_ELEMENTS
# Of all that one graph holds: a gateway reads them before it hands a job to a worker.
MAX_BYTES_OF_GRAPH = 64 * 1024 * 1024
