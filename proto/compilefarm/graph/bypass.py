"""The decision not to ask the farm for a graph, and the reasons for it."""

from __future__ import annotations

from collections.abc import Mapping

# Each reason with a sentence for people. A test holds that every bypass has one of these, and that each is in use.
REASONS: Mapping[str, str] = {
    "aliased_inputs": (
        "The graph writes to an input that shares memory with another input, and sizes differ from call to call, or"
        " Dynamo is not there."
    ),
    "annotation": "Something noted beside the graph or a node may decide how it is compiled, and is not known here.",
    "attribute": "The graph reads an attribute that is neither a tensor nor a subgraph, or that it does not have.",
    "computed_offsets": (
        "Offsets of an embedding bag, repeats or pivots are neither an input, nor numbers that count up, nor of a"
        " factorization, or the last offset says where the last bag ends (`include_last_offset`)."
    ),
    "custom_compiler": "This process changes how Inductor compiles, with a pass or a class of its own.",
    "custom_option": "A compiler setting has a value that farms do not accept.",
    "default_device": "torch.set_default_device names a device other than the CPU.",
    "default_value": "A placeholder of the graph has a default value.",
    "device_number": "The graph names a device by its number alone, which would mean another one on the worker.",
    "device_type": "The graph uses a device other than the CPU and CUDA GPUs.",
    "dtype": "The graph uses a dtype that farms do not accept, such as a quantized one.",
    "dynamic_float": "A float that differs from call to call decides something, unknown which; or CUDA graphs.",
    "dynamic_shapes": "Sizes differ from call to call in a way that cannot be sent, or where Dynamo checks no guards.",
    "freezing": "The setting `freezing` is on, and the graph is on a GPU, or kernels would hold parts of weights.",
    "graph_state": "The graph changes a tensor that it holds, or holds one that cannot be sent.",
    "held_tensors": "The graph is to be saved, and holds a tensor that may change.",
    "higher_order_operator": "The graph uses a higher-order operator that farms do not accept.",
    "input_count": "There are more or fewer inputs than placeholders.",
    "input_mismatch": "An input differs in shape, strides or dtype from the one that the graph was traced with.",
    "input_type": "An input is neither a tensor nor a number.",
    "layout": "A tensor is nested, sparse or quantized.",
    "lazy_view": "A tensor is a lazily conjugated or negated view.",
    "misplaced_view": "The graph calls as_strided, and an input does not begin where its memory does.",
    "module_call": "The graph calls a module, which Dynamo would have traced into.",
    "multi_kernel": "Inductor is to choose between kernels in each process, at the first call.",
    "nesting": "An argument is nested too deeply.",
    "number_input": "An input is a number other than a dynamic integer.",
    "output_structure": "The graph returns something other than a flat tuple or list of tensors and numbers.",
    "overlapping_strides": "Elements of a tensor share memory, as those of unfold() do.",
    "plain_graphs": (
        "Torch makes no graphs of plain tensors of it, as it does of tensor subclasses and of inputs that share memory;"
        " or forward and backward would be recorded as CUDA graphs apart."
    ),
    "process_group": "A collective names a process group that this process does not have, or one that cannot be sent.",
    "refused_option": "A compiler setting that farms do not accept differs from its default.",
    "replaced_operator": "This process has put something of its own in the place of something of torch.",
    "saved_tensors_hooks": "torch.autograd.graph.saved_tensors_hooks are in use, which are functions of this process.",
    "several_devices": "The graph uses several GPUs.",
    "subgraph": "A subgraph is nested too deeply.",
    "tensor_subclass": "A tensor is of a subclass of torch.Tensor, and Dynamo is not there.",
    "triton_kernel": "A Triton kernel of the user cannot be sent as source; the message says what it refers to.",
    "unbacked_input": "The current value of a size or an input is not known.",
    "unknown_literal": "An argument of a call cannot be sent as data.",
    "unknown_operator_source": "No source is found for what an operator of another library does.",
    "unknown_option": "This torch has no Inductor option of that name.",
    "unknown_target": "The graph calls a function, method or operator that farms do not accept.",
    "unsaid": "The graph is to be saved, and could not be sent to a farm.",
}


class Bypass(Exception):
    """The farm is not asked for this graph: something about it cannot be sent faithfully.

    Attributes:
        reason: one of REASONS; metrics count by it. The message is for people and names the thing.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
