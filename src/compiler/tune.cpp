#include "compiler/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "compiler/codegen.h"
#include "cost/memory.h"
#include "lower/contraction.h"
#include "support/error.h"

namespace trainc::compiler {
namespace {

const std::string kKernel = "kernel";  // instead of an algorithm of the library's

}  // namespace

std::vector<lower::LoweredKernel> Tuner::best(const schedule::Group& group, std::vector<lower::LoweredKernel> lowered) {
  if (!job_.tuning || group.kind != schedule::GroupKind::Contract || lowered.size() != 1) return lowered;
  if (lowered[0].product) return product(group, std::move(lowered));
  return options_.target.measures ? cut(group, std::move(lowered)) : std::move(lowered);
}

double Tuner::seconds_of(const lower::LoweredKernel& made, plan::Kernel& kernel) const {
  if (kernel.code.empty()) {
    const loop::LoopNest nest = anonymous(made.nest);
    CodeGenerator::Code code = generator_of(options_.target).generate(nest, options_.target, Entry::Plan);
    kernel = without_code(nest);
    kernel.code = std::move(code.bytes), kernel.entry = code.entry;
  }
  std::vector<int64_t> bytes;
  for (const Node* n : made.arguments) {
    const Dims& strides = n->op == Op::Input ? n->as<InputAttr>().strides : Dims{};
    bytes.push_back(schedule_.bits.contains(n)
                        ? schedule_.bytes(n)
                        : storage_bytes(n->type, strides.empty() ? contiguous_strides(n->shape()) : strides));
  }
  return job_.tuning->seconds(kernel, made.nest.parallel_extent, bytes);
}

std::vector<lower::LoweredKernel> Tuner::cut(const schedule::Group& group, std::vector<lower::LoweredKernel> lowered) {
  const std::string text = loop::print(anonymous(lowered[0].nest));
  const auto variant = [&](int v) {
    lower::LoweringOptions lowering = lowering_;
    lowering.blocking = v;
    return lower::lower(graph_, schedule_, group, lowering);
  };
  auto [it, fresh] = chosen_.emplace(text, 0);
  if (fresh) {
    std::map<std::string, int> seen;  // text, and the variant that has it
    std::map<int, plan::Kernel> kernels;
    const auto measure = [&](int v) {
      const std::vector<lower::LoweredKernel> made = variant(v);
      if (seen.emplace(loop::print(anonymous(made[0].nest)), v).first->second != v)
        return std::numeric_limits<double>::infinity();
      return seconds_of(made[0], kernels[v]);
    };
    it->second = job_.tuning->choose(text, schedule::kBlockingVariants, measure);
    require(it->second >= 0 && it->second < schedule::kBlockingVariants, "tuning chose a variant that does not exist");
  }
  return it->second == 0 ? std::move(lowered) : variant(it->second);
}

std::vector<lower::LoweredKernel> Tuner::product(const schedule::Group& group,
                                                 std::vector<lower::LoweredKernel> lowered) {
  if (!job_.tuning->algorithms || !options_.target.measures_products) return lowered;
  plan::Product& product = *lowered[0].product;
  // What sums of an operand are left to the library, no kernel of a contraction makes.
  const auto is_sum = [](const Node* n) { return n->op == Op::Reduce; };
  std::vector<lower::LoweredKernel> kernel;
  if (std::ranges::none_of(group.values, is_sum)) {
    lower::LoweringOptions lowering = lowering_;
    lowering.vendor_product_flops = 0;
    kernel = lower::lower(graph_, schedule_, group, lowering);
    // What is not a float is no random number.
    const auto measurable = [](const Node* n) { return n && is_float(n->dtype()); };
    if (kernel.size() != 1 || !std::ranges::all_of(kernel[0].arguments, measurable)) kernel.clear();
  }
  const std::string text = plan::print(product) + (kernel.empty() ? "" : "\n" + loop::print(anonymous(kernel[0].nest)));
  auto [it, fresh] = ways_.emplace(text, Choice{});
  Choice& choice = it->second;
  if (fresh) {
    std::vector<std::string> ways = job_.tuning->algorithms(product, cost::kVendorWorkspace);
    if (!ways.empty()) {  // else the plan's own check says what is not there
      choice.first = ways[0];
      if (!kernel.empty()) ways.push_back(kKernel);
      plan::Kernel code;
      const auto measure = [&](int way) {
        const std::string& name = ways.at(static_cast<size_t>(way));
        try {
          if (name == kKernel) return seconds_of(kernel[0], code);
          plan::Product by = product;
          by.algorithm = name;
          return job_.tuning->product_seconds(by, cost::kVendorWorkspace);
        } catch (const InternalError&) {  // no memory is left for it, or the driver refuses it
          return std::numeric_limits<double>::infinity();
        }
      };
      choice.way = job_.tuning->choose_way(text, ways, measure);
      choice.measured = static_cast<int>(ways.size());
      require(choice.way.empty() || std::ranges::find(ways, choice.way) != ways.end(),
              "tuning chose an algorithm that does not exist");
    }
  }
  ++choice.products;
  if (choice.way == kKernel) return kernel;
  product.algorithm = choice.way;
  return lowered;
}

std::vector<std::string> Tuner::notes() const {
  int products = 0, ways = 0, others = 0, kernels = 0, unmeasured = 0;
  for (const auto& [text, choice] : ways_) {
    if (choice.measured == 0) continue;
    products += choice.products, ways += choice.measured;
    if (choice.way.empty()) unmeasured += choice.products;
    else if (choice.way == kKernel) kernels += choice.products;
    else if (choice.way != choice.first) others += choice.products;
  }
  std::vector<std::string> notes;
  if (products > 0)
    notes.push_back(fmt::format(
        "tune=\"max\": {} products, {} ways to compute them: {} by another algorithm than the library's first, {} by "
        "kernels of trainc's",
        products, ways, others, kernels));
  if (unmeasured > 0)
    notes.push_back(
        fmt::format("tune=\"max\": {} products could not be measured, and are the library's choice", unmeasured));
  return notes;
}

}  // namespace trainc::compiler
