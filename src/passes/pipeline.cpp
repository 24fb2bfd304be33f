#include "passes/pipeline.h"

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "graph/text.h"
#include "graph/verify.h"
#include "passes/channels_last.h"
#include "passes/rewrite.h"
#include "passes/rules.h"
#include "passes/scale_products.h"
#include "passes/turn_products.h"
#include "support/dump.h"

namespace trainc {

std::span<const std::string_view> optional_passes() {
  static constexpr std::string_view kNames[] = {"remove_dead",    "channels_last", "simplify",
                                                "scale_products", "turn_products", "join_products",
                                                "chunk_rows",     "pad_products",  "framework_calls"};
  return kNames;
}

Graph optimize(Graph g, Pipeline& p) {
  g = p.run("remove_dead", remove_dead, std::move(g));  // first: what is not needed costs the others time
  // before simplify, which puts together the permutes that meet
  g = p.run("channels_last", channels_last, std::move(g));
  // Algebra, constants and movements in one fixed point: each opens the way for the others (a folded constant makes a
  // select vanish, which brings two reshapes together).
  g = p.run("simplify", simplify, std::move(g));
  // after simplify, which brings numbers to one form; before turn_products, which knows them behind a product alone
  g = p.run("scale_products", scale_products, std::move(g));
  // after simplify, which puts together the permutes above a product
  g = p.run("turn_products", turn_products, std::move(g));
  // Transposes below a contract stay where they are: the schedule reads them as the operand's strides.
  return g;
}

namespace {

void same_counts(const Graph& before, const Graph& after) {
  require(before.input_count == after.input_count, "the number of arguments has changed");
  require(before.outputs.size() == after.outputs.size(), "the number of results has changed");
}

/// The arguments, the results and the draws are as they were.
void same_signature(const Graph& before, const Graph& after) {
  same_counts(before, after);
  for (size_t i = 0; i < before.outputs.size(); ++i) {
    const Output &a = before.outputs[i], &b = after.outputs[i];
    require(!a.value == !b.value && a.strides == b.strides && (!a.value || a.value->type == b.value->type),
            "result " + std::to_string(i) + " has changed its type");
  }
  const auto same_draw = [](const Node* a, const Node* b) { return draw_of(a) == draw_of(b) && a->type == b->type; };
  require(
      std::equal(before.effects.begin(), before.effects.end(), after.effects.begin(), after.effects.end(), same_draw),
      "the draws have changed");
}

/// Whether the two would print the same, origins aside: node by node, which costs less than printing both.
bool same_graph(const Graph& a, const Graph& b) {
  const std::vector<const Node*> mine = a.live(), others = b.live();
  if (mine.size() != others.size()) return false;
  std::unordered_map<const Node*, const Node*> other_of{{nullptr, nullptr}};
  const auto same = [&](const Node* x, const Node* y) {
    return x->op == y->op && x->type == y->type && x->attrs == y->attrs &&
           std::equal(x->inputs.begin(), x->inputs.end(), y->inputs.begin(), y->inputs.end(),
                      [&](const Node* i, const Node* j) { return other_of.at(i) == j; });
  };
  for (size_t i = 0; i < mine.size(); ++i) {
    if (!same(mine[i], others[i])) return false;
    other_of[mine[i]] = others[i];
  }
  if (!std::equal(a.effects.begin(), a.effects.end(), b.effects.begin(), b.effects.end(),
                  [&](const Node* x, const Node* y) { return other_of.at(x) == y; }))
    return false;
  return std::equal(
      a.outputs.begin(), a.outputs.end(), b.outputs.begin(), b.outputs.end(),
      [&](const Output& x, const Output& y) { return other_of.at(x.value) == y.value && x.strides == y.strides; });
}

}  // namespace

Pipeline::Pipeline(std::string graph_name, std::vector<std::string> disabled)
    : graph_name_(std::move(graph_name)), disabled_(std::move(disabled)) {}

Graph Pipeline::run(const char* pass, const Pass& fn, Graph graph) {
  const auto known = optional_passes();
  require(std::find(known.begin(), known.end(), pass) != known.end(), std::string(pass) + " is no optional pass");
  if (std::find(disabled_.begin(), disabled_.end(), pass) == disabled_.end())
    return checked(pass, fn, graph, same_signature);
  const int64_t nodes = graph.live().size();
  records_.push_back({pass, 0, nodes, nodes, false, true});
  return graph;
}

Graph Pipeline::run_needed(const char* pass, const Pass& fn, const Graph& graph) {
  return checked(pass, fn, graph, same_counts);
}

Graph Pipeline::checked(const char* pass, const Pass& fn, const Graph& graph,
                        const std::function<void(const Graph&, const Graph&)>& check) {
  const int64_t nodes = graph.live().size();
  const auto begin = std::chrono::steady_clock::now();
  Graph after;
  try {
    after = fn(graph);
    verify(after);
    check(graph, after);
  } catch (const UserError&) { throw; } catch (const std::exception& e) {
    std::string input = " (TRAINC_DUMP=graph keeps its input as a file)";
    if (dumping("graph")) {
      const std::string file = write_dump(graph_name_ + ".failed." + pass + ".graph", print(graph));
      input =
          file.empty() ? " (its input could not be written to " + dump_directory() + ")" : "; its input is in " + file;
    }
    throw InternalError("pass " + std::string(pass) + " of " + graph_name_ + ": " + e.what() + input);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const bool changed = !same_graph(graph, after);
  if (dumping("graph")) {
    const auto numbered = [&](size_t n, const char* what) {
      return graph_name_ + (n < 10 ? ".0" : ".") + std::to_string(n) + "." + what + ".graph";
    };
    if (records_.empty()) write_dump(numbered(0, "input"), print(graph));
    if (changed) write_dump(numbered(records_.size() + 1, pass), print(after));
  }
  records_.push_back({pass, seconds, nodes, static_cast<int64_t>(after.live().size()), changed, false});
  return after;
}

}  // namespace trainc
