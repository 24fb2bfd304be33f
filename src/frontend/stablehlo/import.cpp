#include "frontend/stablehlo/import.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "cost/unrolling.h"
#include "frontend/stablehlo/table.h"
#include "graph/text.h"
#include "support/while_operation.h"

namespace trainc::frontend::stablehlo {
namespace {

class Importer : public Regions {
 public:
  Importer() = default;
  /// Of a part of the module that becomes a graph of its own: what it reads from outside are inputs of that.
  explicit Importer(Importer& outside)
      : functions_(outside.functions_), outside_(&outside), depth_(outside.depth_ + 1) {
    builder_.origin = outside.builder_.origin;
  }
  Importer(Importer&&) = delete;  // its builder knows where its graph is

  Program run(const Json& root) {
    require(root.is_object() && root.contains("functions") && root["functions"].contains("main"),
            "import: the text is not a module in the wire format");
    functions_ = &root["functions"];
    const Json& main = function("main");
    Values arguments;
    for (const Json& arg : main.at("args")) {
      const std::string name = arg.at("name");
      builder_.origin = name;
      out_.input_names.push_back(name);
      for (const Value& v : input(type_of(arg, name), parts_of(arg))) arguments.push_back(v);
    }
    Importer::run(main, arguments);
    for (const Json& name : main.at("returns")) out_.graph.outputs.push_back({output(value(name)), {}});
    return std::move(out_);
  }

  /// Of the operations of "main", what a row refuses: their results are arguments of what follows.
  std::vector<RefusedOperation> refused(const Json& root) {
    functions_ = &root.at("functions");
    const Json& main = function("main");
    std::vector<RefusedOperation> found;
    for (const Json& arg : main.at("args")) unknown(arg);
    for (size_t i = 0; i < main.at("body").size(); ++i) try {
        operation(main["body"][i]);
      } catch (const InternalError& e) {
        found.push_back({i, e.what()});
        mapped_.reset(), taken_ = {};
        most_nodes_ = static_cast<int64_t>(out_.graph.nodes().size()) + cost::kMostPrimitives;
        for (const Json& result : main["body"][i].at("results")) unknown(result);
      }
    return found;
  }

  Values run(const Json& region, const Values& arguments) override {
    const Json& names = region.at("args");
    const std::string caller = builder_.origin;
    const auto fits = [&](bool so) {
      require(so, caller + ": " + std::to_string(arguments.size()) + " arguments for a region of " +
                      std::to_string(names.size()));
    };
    auto next = arguments.begin();
    for (const Json& arg : names) {
      const int parts = parts_of(arg);
      fits(arguments.end() - next >= parts);
      values_[arg.at("name")] = Values(next, next + parts);
      next += parts;
    }
    fits(next == arguments.end());
    for (const Json& node : region.at("body")) try {
        operation(node);
      } catch (const Refused& e) {
        // an operation of a library's function may not know its line: then it is that of the call
        const std::string what = e.what(), line = caller.substr(0, caller.find(" ("));
        if (!what.starts_with("(") || line.starts_with("(") || line.find(':') == std::string::npos) throw;
        throw Refused(line + " " + what);
      }
    Values returned;
    for (const Json& name : region.at("returns"))
      for (const Value& v : value(name)) returned.push_back(v);
    builder_.origin = caller;
    return returned;
  }

  Values map(const Json& region, const Values& arguments) override {
    const std::optional<Dims> outside = std::exchange(mapped_, arguments.at(0).shape());
    Values results = run(region, arguments);
    for (Value& v : results) v = formulas::broadcast(v, *mapped_);
    mapped_ = outside;
    return results;
  }

  Values branch(const Json& region, const Value& taken) override {
    const Value outside = std::exchange(taken_, taken_.node ? taken_ & taken : taken);
    Values results = run(region, {});
    taken_ = outside;
    return results;
  }

  bool in_loop() const override { return outside_ != nullptr; }

  Values loop(const Call& c, const Value& goes_on, int64_t in_vain) override {
    if (mapped_) c.fail("in a region on scalars its trips are too many, or depend on an argument");
    const Json &body = c.region(1), &names = body.at("args"), &returns = body.at("returns");
    c.need(names.size() == returns.size() && c.operands.size() == names.size(), "carries other values than it gives");
    Parts carried;  // places in c.in; what the body gives as it was is not carried, but read from outside
    int place = 0;
    for (size_t i = 0; i < names.size(); ++i)
      for (int part = 0; part < c.operands[i]; ++part, ++place)
        if (names[i].at("name") != returns[i]) carried.push_back(place);
    Importer inside(*this);
    if (inside.depth_ > kDeepestLoop) c.fail("is a loop within " + std::to_string(kDeepestLoop) + " others");
    Values first(c.in.size()), results = c.in;
    std::vector<const Node*> operands;
    ExternAttr attr;
    for (int k : carried) {
      const Value& v = c.in[k];
      first[k] = {&inside.builder_, inside.builder_.input(inside.out_.graph.input_count++, v.node->type)};
      operands.push_back(v.node);
      attr.results.push_back(v.node->type);
    }
    for (size_t k = 0; k < first.size(); ++k)
      if (!first[k].node) first[k] = inside.from_outside(c.in[k]);
    const Values next = inside.run(body, first), again = inside.run(c.region(0), next);
    c.need(next.size() == first.size() && again.size() == 1, "carries other values than it gives");
    for (int k : carried) {
      c.need(next[k].node->type == c.in[k].node->type, "gives another type than it carries");
      inside.out_.graph.outputs.push_back({next[k].node, {}});
    }
    inside.out_.graph.outputs.push_back({again[0].node, {}});
    operands.insert(operands.end(), inside.read_outside_.begin(), inside.read_outside_.end());
    operands.push_back((taken_.node ? goes_on & taken_ : goes_on).node);
    c.need(!carried.empty(), "carries nothing");
    most_nodes_ += in_vain;
    attr.target = kWhile;
    attr.arguments = Json{{"carried", carried.size()}, {"graph", print(inside.out_.graph)}}.dump();
    const Node* call = builder_.extern_call(std::move(attr), std::move(operands));
    for (size_t k = 0; k < carried.size(); ++k)
      results[carried[k]] = {&builder_, builder_.result(call, static_cast<int64_t>(k))};
    return results;
  }

  const Json& function(const std::string& name) override {
    require(functions_->contains(name), builder_.origin + ": no function is called '" + name + "'");
    return (*functions_)[name];
  }

 private:
  /// An argument of the program. A complex one lies in memory as its parts, which alternate.
  Values input(Type type, int parts) {
    const Dims shape = type.shape;
    if (parts == 2) type.shape.push_back(2);
    const Value whole = {&builder_, builder_.input(out_.graph.input_count++, type)};
    if (parts == 1) return {whole};
    Values taken;
    for (int64_t part = 0; part < 2; ++part)
      taken.push_back(reshape(with(whole, builder_.slice_axis(whole.node, type.rank() - 1, part, 1)), shape));
    arguments_[{taken[0].node, taken[1].node}] = whole.node;
    return taken;
  }

  /// A value of the graph outside: an input here, or the constant that it is there.
  Value from_outside(const Value& v) {
    auto [it, fresh] = here_.emplace(v.node, nullptr);
    if (!fresh) return {&builder_, it->second};
    const auto is_constant = [](const Node* n) { return n->op == Op::Constant; };
    const auto constant = [&](const Node* n) { return out_.graph.make(n->op, n->attrs, {}, n->type); };
    const auto known = v.node->type.shape.empty() ? outside_->known_.integer(v.node) : std::nullopt;
    if (is_constant(v.node)) return {&builder_, it->second = constant(v.node)};
    if (known) return {&builder_, it->second = builder_.constant_int(v.dtype(), *known)};
    if (class_of(v.node->op) == OpClass::Movement && std::ranges::all_of(v.node->inputs, is_constant)) {
      std::vector<const Node*> inputs;
      for (const Node* n : v.node->inputs) inputs.push_back(constant(n));
      return {&builder_, it->second = out_.graph.make(v.node->op, v.node->attrs, std::move(inputs), v.node->type)};
    }
    read_outside_.push_back(v.node);
    return {&builder_, it->second = builder_.input(out_.graph.input_count++, v.node->type)};
  }

  /// A value that only its type is known of. Where that is of no dtype of ours, what takes it has none, either.
  void unknown(const Json& value) {
    values_[value.at("name")] = {};
    try {
      values_[value.at("name")] = input(type_of(value, value.at("name")), parts_of(value));
    } catch (const Refused&) { of_no_dtype_.insert(value.at("name").get<std::string>()); }
  }

  /// A result of the program, the other way.
  const Node* output(const Values& v) {
    if (v.size() == 1) return v[0].node;
    if (const auto it = arguments_.find({v[0].node, v[1].node}); it != arguments_.end()) return it->second;
    Dims apart = v[0].shape();
    apart.push_back(1);
    const std::vector<const Node*> both{reshape(v[0], apart).node, reshape(v[1], apart).node};
    return builder_.concat(both, v[0].rank());
  }

  void operation(const Json& node) {
    const std::string name = node.at("op");
    builder_.origin = origin_of(node, name);
    const Handler *of_reals = table().find(name), *of_complex = complex_table().find(name);
    if (!of_reals && !of_complex) throw Refused(builder_.origin + ": trainc has no row for " + name);
    static const Json none = Json::object(), no_regions = Json::array();
    Call call{builder_,
              name,
              {},
              {},
              {},
              {},
              node.contains("attrs") ? node["attrs"] : none,
              node.contains("regions") ? node["regions"] : no_regions,
              *this,
              known_};
    for (const Json& operand : node.at("operands")) {
      const Values& parts = value(operand);
      call.in.insert(call.in.end(), parts.begin(), parts.end());
      call.operands.push_back(static_cast<int>(parts.size()));
    }
    for (const Json& result : node.at("results")) {
      call.results.push_back(parts_of(result));
      call.types.insert(call.types.end(), call.results.back(), type_of(result, builder_.origin));
    }
    if (mapped_) mapped(call);
    const Handler* row = call.is_complex() ? of_complex : of_reals;
    if (!row) call.fail("of complex numbers is not compiled");
    bind(call, results_of(call, *row), node.at("results"));
    require(static_cast<int64_t>(out_.graph.nodes().size()) <= most_nodes_,
            builder_.origin + ": more than " + std::to_string(cost::kMostPrimitives) +
                " primitives: a loop of too many trips");
  }

  /// A call on scalars, made one on each element of a tensor.
  void mapped(Call& call) {
    for (Value& operand : call.in) operand = formulas::broadcast(operand, *mapped_);
    for (Type& type : call.types) {
      if (type.rank() > 0) call.fail("is no operation on scalars in a region that has to be");
      type.shape = *mapped_;
    }
  }

  static Values results_of(const Call& call, const Handler& row) {
    const std::string place = call.b.origin + ": " + call.name + ": ";
    try {
      return row(call);
    } catch (const Refused&) { throw; } catch (const InternalError& e) {  // the builder's do not know the place
      throw Refused(place + e.what());
    } catch (const Json::exception& e) { throw Refused(place + "the wire format is violated: " + e.what()); }
  }

  /// A row that gives another type than the module says is wrong: better here than in numbers.
  void bind(const Call& call, const Values& results, const Json& names) {
    if (results.size() != call.types.size())
      call.fail("gives " + std::to_string(results.size()) + " results of " + std::to_string(call.types.size()));
    for (size_t i = 0; i < results.size(); ++i)
      if (results[i].node->type != call.types[i])
        call.fail("result " + std::to_string(i) + " is " + to_string(results[i].node->type) + ", not " +
                  to_string(call.types[i]));
    auto next = results.begin();
    for (size_t i = 0; i < names.size(); next += call.results[i++])
      values_[names[i].at("name")] = Values(next, next + call.results[i]);
  }

  const Values& value(const std::string& name) {
    auto it = values_.find(name);
    if (it == values_.end() && outside_) {
      Values here;
      for (const Value& v : outside_->value(name)) here.push_back(from_outside(v));
      it = values_.emplace(name, std::move(here)).first;
    }
    if (of_no_dtype_.contains(name)) throw Refused(builder_.origin + ": an operand's dtype is not compiled");
    require(it != values_.end(), builder_.origin + ": " + name + " is used before it is made");
    return it->second;
  }

  static std::string origin_of(const Json& node, const std::string& name) {
    const bool has = node.contains("origin") && node["origin"].is_string();
    const std::string origin = has ? node["origin"].get<std::string>() : "";
    return origin.empty() ? "(" + name + ")" : origin;
  }

  /// Of a complex value that of each part.
  static Type type_of(const Json& json, const std::string& place) {
    std::string dtype = json.at("dtype");
    if (dtype == "complex<f32>" || dtype == "complex<f64>") dtype = dtype.substr(8, 3);
    Type type{DType::F32, json.at("shape").get<Dims>()};
    try {
      type.dtype = dtype_of(dtype);
    } catch (const InternalError&) { throw Refused(place + ": dtype " + dtype + " is not compiled"); }
    return type;
  }

  Program out_;
  Builder builder_{out_.graph, ""};
  const Json* functions_ = nullptr;
  std::unordered_map<std::string, Values> values_;
  std::map<std::pair<const Node*, const Node*>, const Node*> arguments_;  // complex ones, by their parts
  int64_t most_nodes_ = cost::kMostPrimitives;
  std::unordered_set<std::string> of_no_dtype_;  // values whose dtype is not ours, when refusals are looked for
  std::optional<Dims> mapped_;                   // of the tensors for whose elements a region on scalars is read
  Value taken_;                                  // whether the branch that is read is taken; none: outside of branches
  Known known_;
  Importer* outside_ = nullptr;                        // whose module this is a part of
  int depth_ = 0;                                      // loops that it is in
  std::vector<const Node*> read_outside_;              // its values that are inputs here, behind those that there were
  std::unordered_map<const Node*, const Node*> here_;  // what stands for its values
};

}  // namespace
}  // namespace trainc::frontend::stablehlo

namespace trainc::frontend {

Program import_stablehlo(const nlohmann::json& root) {
  try {
    return stablehlo::Importer().run(root);
  } catch (const stablehlo::Json::exception& e) {
    throw InternalError(std::string("import: the wire format is violated: ") + e.what());
  }
}

std::vector<RefusedOperation> refused_by_stablehlo(const nlohmann::json& root) {
  try {
    return stablehlo::Importer().refused(root);
  } catch (const stablehlo::Json::exception& e) {
    throw InternalError(std::string("import: the wire format is violated: ") + e.what());
  }
}

std::vector<std::string> stablehlo_operations() {
  std::vector<std::string> names;
  for (const auto& [name, handler] : stablehlo::table().rows()) names.push_back(name);
  for (const auto& [name, handler] : stablehlo::complex_table().rows()) names.push_back("complex " + name);
  return names;
}

}  // namespace trainc::frontend
