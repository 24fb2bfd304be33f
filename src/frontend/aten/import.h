// ATen -> Program. Takes: an AOTAutograd FX graph as JSON (docs/frontend.md, python/trainc/torch/graph/wire.py writes
// it). Gives: Program. One table row per ATen operation; an operation without a row becomes an extern node. Includes:
// graph, frontend/formulas, nlohmann-json.
//
// Wire format:
//   {"name": "joint", "nodes": [
//     {"op": "placeholder", "name": "primals_1", "val": {"dtype": "f32", "shape": [8, 64], "stride": [64, 1]},
//      "begins": false},
//     {"op": "call", "name": "add_1", "target": "aten.add.Tensor", "args": [...], "kwargs": {...}, "val": V,
//      "origin": "model.py:41", "random": false, "recompute": false, "aliases": ["primals_1"], "writes": false,
//      "late": false},
//     {"op": "output", "args": [{"n": "add_1"}, null]}]}
//   - V: one tensor's {"dtype", "shape", "stride", "offset": its first element's place in its storage, where that is
//   not
//     0}, a list of them (null: undefined) for several results, or null (not a tensor).
//   - args: {"n": name} a node ({"n": name, "view": "uint64"}: i64 here, given to the framework as that dtype;
//   "complex64": pairs of f32; "dense": the framework is given it row-major, though it may be a copy of what is not;
//   [1, 8]: with these strides, for numbers are drawn in the order of memory);
//     {"dtype": "f32"}; {"float": "inf" | "-inf" | "nan"}; {"complex": [real, imaginary]}; {"other": text} (device,
//     layout, memory format, generator); null, true/false, numbers (1 is an int, 1.0 is a float), strings, lists.
//     SymInts do not occur.
//   - "begins": whoever runs the graph sees to it that the input begins at "offset" of its storage.
//   - "target": of an ATen operation, or "getitem".
//   - "random": the operation draws from the framework's generator; "late": it does so when the backward runs.
//   - "effect": it does something beside its results (a check that raises) and keeps its place among the draws.
//   - "framework": the framework runs it, whatever rows there are: its tensors are complex, pairs of reals here.
//   - By the operator's schema: "aliases", nodes that a result may be a view of; "writes": it writes over an argument.
//   - "generator": "philox" beside "nodes": the framework draws on the device, whatever draws on the host. A node of
//   native_dropout then has
//     "philox": [threads, vector], how its mask is dealt out (graph.h, RandomAttr); what draws otherwise becomes an
//     extern node.
//   - "default": "f64" beside "nodes": the framework's default dtype where it is not f32, in which an integer meets a
//     Python float.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "graph/program.h"
#include "support/mask_generator.h"

namespace trainc::frontend {

/// Outputs are in the order of the "output" node, with the strides of their "val". Throws InternalError that names the
/// node and its origin where the text is not as above. `generator`: how the framework draws masks on the host, which
/// decides the order of a mask's elements.
Program import_aten_graph(const nlohmann::json& root, MaskGenerator generator = MaskGenerator::Twister);
/// The same of a text.
Program import_aten(std::string_view json, MaskGenerator generator = MaskGenerator::Twister);
/// Names of all ATen operations with a row.
std::vector<std::string> supported_operations();

}  // namespace trainc::frontend
