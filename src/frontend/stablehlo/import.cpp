#include "frontend/stablehlo/import.h"

#include <unordered_map>
#include <utility>

#include "frontend/stablehlo/table.h"

namespace trainc::frontend::stablehlo {
namespace {

class Importer : public Regions {
 public:
  Program run(const Json& root) {
    require(root.is_object() && root.contains("functions") && root["functions"].contains("main"),
            "import: the text is not a module in the wire format");
    functions_ = &root["functions"];
    const Json& main = function("main");
    Values arguments;
    for (const Json& arg : main.at("args")) {
      const std::string name = arg.at("name");
      builder_.origin = name;
      const int64_t index = out_.graph.input_count++;
      out_.input_names.push_back(name);
      arguments.push_back({&builder_, builder_.input(index, type_of(arg, name))});
    }
    for (const Value& v : Importer::run(main, arguments)) out_.graph.outputs.push_back({v.node, {}});
    return std::move(out_);
  }

  Values run(const Json& region, const Values& arguments) override {
    const Json& names = region.at("args");
    require(names.size() == arguments.size(), builder_.origin + ": " + std::to_string(arguments.size()) +
                                                  " arguments for a region of " + std::to_string(names.size()));
    const std::string caller = builder_.origin;
    for (size_t i = 0; i < names.size(); ++i) values_[names[i].at("name")] = arguments[i];
    for (const Json& node : region.at("body")) operation(node);
    Values returned;
    for (const Json& name : region.at("returns")) returned.push_back(value(name));
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

  const Json& function(const std::string& name) override {
    require(functions_->contains(name), builder_.origin + ": no function is called '" + name + "'");
    return (*functions_)[name];
  }

 private:
  void operation(const Json& node) {
    const std::string name = node.at("op");
    builder_.origin = origin_of(node, name);
    const Handler* row = table().find(name);
    if (!row) throw Refused(builder_.origin + ": trainc has no row for " + name);
    static const Json none = Json::object(), no_regions = Json::array();
    Call call{builder_,
              name,
              {},
              {},
              node.contains("attrs") ? node["attrs"] : none,
              node.contains("regions") ? node["regions"] : no_regions,
              *this,
              known_};
    for (const Json& operand : node.at("operands")) call.in.push_back(value(operand));
    for (const Json& result : node.at("results")) call.types.push_back(type_of(result, builder_.origin));
    if (mapped_) mapped(call);
    bind(call, results_of(call, *row), node.at("results"));
    require(static_cast<int64_t>(out_.graph.nodes().size()) <= kMostNodes,
            builder_.origin + ": more than " + std::to_string(kMostNodes) + " primitives: a loop of too many trips");
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
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].node->type != call.types[i])
        call.fail("result " + std::to_string(i) + " is " + to_string(results[i].node->type) + ", not " +
                  to_string(call.types[i]));
      values_[names[i].at("name")] = results[i];
    }
  }

  Value value(const std::string& name) const {
    auto it = values_.find(name);
    require(it != values_.end(), builder_.origin + ": " + name + " is used before it is made");
    return it->second;
  }

  static std::string origin_of(const Json& node, const std::string& name) {
    const bool has = node.contains("origin") && node["origin"].is_string();
    const std::string origin = has ? node["origin"].get<std::string>() : "";
    return origin.empty() ? "(" + name + ")" : origin;
  }

  static Type type_of(const Json& json, const std::string& place) {
    const std::string dtype = json.at("dtype");
    Type type{DType::F32, json.at("shape").get<Dims>()};
    try {
      type.dtype = dtype_of(dtype);
    } catch (const InternalError&) { throw Refused(place + ": dtype " + dtype + " is not compiled"); }
    return type;
  }

  static constexpr int64_t kMostNodes = 1'000'000;

  Program out_;
  Builder builder_{out_.graph, ""};
  const Json* functions_ = nullptr;
  std::unordered_map<std::string, Value> values_;
  std::optional<Dims> mapped_;  // of the tensors for whose elements a region on scalars is read
  Known known_;
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

std::vector<std::string> stablehlo_operations() {
  std::vector<std::string> names;
  for (const auto& [name, handler] : stablehlo::table().rows()) names.push_back(name);
  return names;
}

}  // namespace trainc::frontend
