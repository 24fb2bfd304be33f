#include <algorithm>

#include "frontend/aten/import.h"
#include "frontend/aten/strided_view.h"
#include "frontend/aten/table.h"
#include "frontend/formulas/shapes.h"

namespace trainc::frontend::aten {
namespace {

struct TensorMetadata {
  std::optional<Type> type;
  Dims strides;
  int64_t offset = 0;
};

class Importer {
 public:
  explicit Importer(MaskGenerator generator) : generator_(generator) {}

  Program run(const Json& root) {
    require(root.is_object() && root.contains("nodes") && root["nodes"].is_array(),
            "import: the text is not a graph in the wire format");
    philox_ = root.value("generator", "") == "philox";
    default_dtype_ = dtype_of(root.value("default", "f32"));
    for (const Json& node : root["nodes"]) {
      const std::string op = node.value("op", "");
      if (op == "placeholder") placeholder(node);
      else if (op == "call") call(node);
      else if (op == "output") output(node);
      else throw InternalError("import: node " + node.dump() + " is neither placeholder, call nor output");
    }
    for (const Node& node : out_.graph.nodes())
      if (draws(&node)) out_.graph.effects.push_back(&node);
    return std::move(out_);
  }

 private:
  void placeholder(const Json& node) {
    const std::string name = node.at("name");
    const int64_t index = out_.graph.input_count++;
    out_.input_names.push_back(name);
    if (node.at("val").is_null()) return;  // not a tensor: never read
    TensorMetadata v = val(node["val"], name);
    Builder b{out_.graph, name};
    const bool plain = is_row_major(v.type->shape, v.strides);
    const Node* input = b.input(index, *v.type, plain ? Dims{} : v.strides);
    known_[name] = {{input}, {v.strides}, false, {v.offset}, !node.value("begins", false)};
    if (!node.value("late", false)) return;
    ImportedValue late = known_[name];
    late.nodes = {
        out_.graph.make(Op::Input, InputAttr{index, input->as<InputAttr>().strides, true}, {}, *v.type, name)};
    known_[name + "@late"] = std::move(late);
  }

  void call(const Json& node) {
    const std::string name = node.at("name"), target = node.at("target");
    if (target == "getitem") return get_item(name, node.at("args"));
    if (target == "aten._assert_tensor_metadata.default") return;  // says something to the tracer only
    Builder b{out_.graph, place(node, target)};
    std::vector<TensorMetadata> vals;
    const Json& wire = node.at("val");
    const bool is_list = wire.is_array();
    if (is_list)
      for (const Json& v : wire) vals.push_back(val(v, b.origin));
    else vals.push_back(val(wire, b.origin));

    static const Json none = Json::object();
    Call c{b,      target, {},      {},         node.at("args"), node.contains("kwargs") ? node["kwargs"] : none,
           known_, draws_, philox_, generator_, default_dtype_};
    if (node.contains("philox")) c.threads = node["philox"].at(0), c.vector = node["philox"].at(1);
    for (TensorMetadata& v : vals) {
      c.types.push_back(v.type);
      c.strides.push_back(v.strides);
    }
    ImportedValue made{{}, c.strides, is_list, {}, false};
    for (const TensorMetadata& v : vals) made.offsets.push_back(v.offset);
    for (const Json& below : aliases_of(node)) made.of_argument |= known(below).of_argument;
    if (node.value("late", false)) out_.late_draws_from = std::min(out_.late_draws_from, draws_);
    made.nodes = nodes_of(c, node);
    check(c, made.nodes);
    if (node.value("recompute", false))
      for (const Node* n : made.nodes)
        if (n) out_.must_recompute.push_back(n);
    known_[name] = std::move(made);
  }

  Results nodes_of(const Call& c, const Json& node) {
    if (const Handler* row = node.value("framework", false) ? nullptr : table().find(c.target)) {
      try {
        if (Outcome outcome = (*row)(c); outcome.results) return std::move(*outcome.results);
      } catch (const InternalError& e) {  // the builder's do not know the place
        if (std::string_view(e.what()).starts_with(c.b.origin)) throw;
        c.fail(e.what());
      }
    }
    return extern_node(c, node);
  }

  void get_item(const std::string& name, const Json& args) {
    const ImportedValue& from = known(args.at(0));
    const size_t i = args.at(1).get<size_t>();
    require(from.is_list && i < from.nodes.size(), "import: " + name + " takes a result that is not there");
    known_[name] = {{from.nodes[i]}, {from.strides[i]}, false, {from.offsets[i]}, from.of_argument};
  }

  void output(const Json& node) {
    for (const Json& j : node.at("args")) {
      Output out;
      if (!j.is_null()) {
        const ImportedValue& k = known(j);
        require(!k.is_list, "import: an output is a list");
        out.value = k.nodes[0];
        if (out.value) out.strides = output_strides(out.value->type.shape, k.strides[0]);
      }
      out_.graph.outputs.push_back(std::move(out));
    }
  }

  /// The strides to give the caller: the framework's, unless two elements would share a place (an expanded view).
  static Dims output_strides(const Dims& shape, const Dims& strides) {
    if (is_row_major(shape, strides)) return {};
    Dims axes = all_axes(shape.size());
    std::sort(axes.begin(), axes.end(), [&](int64_t x, int64_t y) { return strides[x] < strides[y]; });
    int64_t reach = 0;  // the last element that the axes so far can touch
    for (int64_t axis : axes) {
      if (shape[axis] == 1) continue;
      if (strides[axis] <= reach) return {};
      reach += (shape[axis] - 1) * strides[axis];
    }
    return strides;
  }

  /// Whether a tensor among these is handed to the framework with the strides that it has there.
  static bool has_strides(const Json& j) {
    if (j.is_object() && j.contains("view") && j["view"].is_array()) return true;
    return j.is_structured() && std::any_of(j.begin(), j.end(), has_strides);
  }

  /// The call as it stands, for the framework to run. Its tensors arrive row-major, where nothing else is said. Fused
  /// attention, which gives the same numbers wherever its tensors lie, has them where eager has them: heads are views
  /// of what one product gave, and are put side by side again in its results' own memory.
  Results extern_node(const Call& c, const Json& node) {
    const std::string overload = c.target.substr(0, c.target.rfind('.'));
    if (node.value("writes", false) || (overload.ends_with('_') && !overload.ends_with("__"))) {
      c.fail("writes over its argument");
    }
    const bool random = node.value("random", false);
    // Fused attention draws for its scores, however its result lies.
    const bool fused = c.target.starts_with("aten._scaled_dot_product_");
    const bool as_it_lies = has_strides(c.args) || has_strides(c.kwargs);
    if (random && !fused && !as_it_lies && c.defined(0) && !is_row_major(c.types[0]->shape, c.strides[0]))
      c.fail("draws in an order that is not row-major");

    // What does something beside its results (a check that raises) keeps its place among the draws.
    const bool ordered = random || node.value("effect", false);

    std::vector<const Node*> inputs;
    Json arguments = {{"args", slots(c.args, inputs, fused)}, {"kwargs", slots(c.kwargs, inputs, fused)}};
    const std::vector<Dims> orders = fused ? orders_of(c) : std::vector<Dims>(c.types.size());
    for (size_t i = 0; i < orders.size(); ++i)
      if (!orders[i].empty()) arguments["orders"][std::to_string(i)] = orders[i];
    ExternAttr attr{
        .target = c.target,
        .arguments = arguments.dump(),
        .random = ordered,
        .draw = ordered ? draws_++ : -1,
        .may_draw = !c.target.starts_with("aten."),
        .aliases = aliases(node, inputs),
        .reason = table().find(c.target) ? "this form of it has no compiled equivalent" : "trainc has no row for it"};
    bool any = false;
    for (size_t i = 0; i < c.types.size(); ++i) {
      any |= c.types[i].has_value();
      attr.results.push_back(c.types[i].value_or(Type{DType::Bool, {0}}));
      Dims& shape = attr.results.back().shape;
      for (size_t axis = 0; axis < orders[i].size(); ++axis)
        shape[axis] = c.types[i]->shape[static_cast<size_t>(orders[i][axis])];
    }
    if (!any && !ordered) c.fail("gives no tensor");
    const Node* made = c.b.extern_call(std::move(attr), std::move(inputs));
    Results results;
    for (size_t i = 0; i < c.types.size(); ++i) {
      results.push_back(c.types[i] ? c.b.result(made, i) : nullptr);
      if (!orders[i].empty()) results[i] = formulas::permute_back({&c.b, results[i]}, orders[i]).node;
    }
    return results;
  }

  /// Of each result that is dense in another order than its axes': that order. The call gives it so.
  static std::vector<Dims> orders_of(const Call& c) {
    std::vector<Dims> orders(c.types.size());
    for (size_t i = 0; i < orders.size(); ++i)
      if (c.types[i] && !is_row_major(c.types[i]->shape, c.strides[i]))
        orders[i] = order_in_memory(c.types[i]->shape, c.strides[i]);
    return orders;
  }

  /// What a result may be a view of, as nodes of the text.
  static std::vector<Json> aliases_of(const Json& node) {
    std::vector<Json> nodes;
    for (const Json& name : node.value("aliases", Json::array())) nodes.emplace_back(Json::object())["n"] = name;
    return nodes;
  }

  /// The places of these among `inputs`.
  Dims aliases(const Json& node, const std::vector<const Node*>& inputs) const {
    Dims places;
    for (const Json& below : aliases_of(node))
      for (const Node* n : known(below).nodes)
        if (auto it = std::find(inputs.begin(), inputs.end(), n); n && it != inputs.end())
          places.push_back(it - inputs.begin());
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    return places;
  }

  /// `j` with every tensor replaced by its place among `inputs`. `as_views`: where the framework's tensor is a view of
  /// a value that lies in memory, as such.
  Json slots(const Json& j, std::vector<const Node*>& inputs, bool as_views = false) {
    auto slot = [&](const Node* n) -> Json {
      if (!n) return nullptr;
      auto it = std::find(inputs.begin(), inputs.end(), n);
      if (it == inputs.end()) it = inputs.insert(inputs.end(), n);
      Json place = Json::object();
      place["$"] = it - inputs.begin();
      return place;
    };
    if (j.is_object() && j.contains("n")) {
      const ImportedValue& k = known(j);
      if (!k.is_list) {
        // strides that are told for a draw's sake say nothing of attention's
        const bool told = j.contains("view") && !(as_views && j["view"].is_array());
        if (as_views && k.nodes[0] && !told) {
          const StridedView v = strided_view(k.nodes[0]);
          const Dims& shape = k.nodes[0]->shape();
          if (v.base != k.nodes[0] && !is_row_major(shape, k.strides[0]) && lie_alike(shape, v.strides, k.strides[0])) {
            Json place = slot(v.base);
            place["strided"] = {shape, v.strides, v.offset};
            return place;
          }
        }
        Json place = slot(k.nodes[0]);
        if (told && !place.is_null()) place["view"] = j["view"];
        return place;
      }
      Json list = Json::array();
      for (const Node* n : k.nodes) list.push_back(slot(n));
      return list;
    }
    if (!j.is_structured()) return j;
    Json out = j;
    for (auto it = out.begin(); it != out.end(); ++it) *it = slots(*it, inputs, as_views);
    return out;
  }

  /// A row that gives another type than the framework says is wrong: better here than in numbers.
  static void check(const Call& c, const Results& results) {
    if (results.size() != c.types.size())
      c.fail("gives " + std::to_string(results.size()) + " results of " + std::to_string(c.types.size()));
    for (size_t i = 0; i < results.size(); ++i)
      if (results[i] && c.types[i] && results[i]->type != *c.types[i])
        c.fail("result " + std::to_string(i) + " is " + to_string(results[i]->type) + ", not " +
               to_string(*c.types[i]));
  }

  const ImportedValue& known(const Json& j) const {
    require(j.is_object() && j.contains("n"), "import: " + j.dump() + " is not a node");
    auto it = known_.find(j["n"].get<std::string>());
    require(it != known_.end(), "import: " + j.dump() + " is used before it is made, or is no tensor");
    return it->second;
  }

  static std::string place(const Json& node, const std::string& target) {
    const std::string op = target.substr(0, target.rfind('.'));  // without the overload
    const std::string origin =
        node.contains("origin") && node["origin"].is_string() ? node["origin"].get<std::string>() : "";
    return origin.empty() ? "(" + op + ")" : origin + " (" + op + ")";
  }

  static TensorMetadata val(const Json& j, const std::string& place) {
    if (j.is_null()) return {};
    const std::string dtype = j.at("dtype");
    TensorMetadata v{Type{DType::F32, j.at("shape").get<Dims>()}, {}};
    try {
      v.type->dtype = dtype_of(dtype);
    } catch (const InternalError&) { throw InternalError(place + ": dtype " + dtype + " is not compiled"); }
    v.strides = j.contains("stride") ? j["stride"].get<Dims>() : contiguous_strides(v.type->shape);
    v.offset = j.value("offset", int64_t{0});
    require(v.strides.size() == v.type->shape.size(), place + ": strides and shape differ in length");
    return v;
  }

  Program out_;
  Environment known_;
  int64_t draws_ = 0;
  const MaskGenerator generator_;
  bool philox_ = false;
  DType default_dtype_ = DType::F32;
};

}  // namespace
}  // namespace trainc::frontend::aten

namespace trainc::frontend {

Program import_aten(std::string_view json, MaskGenerator generator) {
  return import_aten_graph(aten::Json::parse(json, nullptr, /*allow_exceptions=*/false), generator);
}

Program import_aten_graph(const nlohmann::json& root, MaskGenerator generator) {
  try {
    return aten::Importer(generator).run(root);
  } catch (const aten::Json::exception& e) {
    throw InternalError(std::string("import: the wire format is violated: ") + e.what());
  }
}

std::vector<std::string> supported_operations() {
  std::vector<std::string> names;
  for (const auto& [name, handler] : aten::table().rows()) names.push_back(name);
  return names;
}

}  // namespace trainc::frontend
