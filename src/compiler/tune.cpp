#include "compiler/tune.h"

#include <limits>
#include <map>

#include "compiler/codegen.h"
#include "lower/contraction.h"

namespace trainc::compiler {

std::vector<lower::LoweredKernel> Tuner::best(const schedule::Group& group, std::vector<lower::LoweredKernel> lowered) {
  if (!job_.tuning || group.kind != schedule::GroupKind::Contract || lowered.size() != 1) return lowered;
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
      const loop::LoopNest nest = anonymous(made[0].nest);
      if (seen.emplace(loop::print(nest), v).first->second != v) return std::numeric_limits<double>::infinity();
      plan::Kernel& kernel = kernels[v];
      if (kernel.code.empty()) {
        CodeGenerator::Code code = generator_of(options_.target).generate(nest, options_.target, Entry::Plan);
        kernel = {nest.name, std::move(code.bytes), code.entry, nest.scratch_bytes(), 0};
      }
      std::vector<int64_t> bytes;
      for (const Node* n : made[0].arguments) {
        const Dims& strides = n->op == Op::Input ? n->as<InputAttr>().strides : Dims{};
        bytes.push_back(schedule_.bits.contains(n)
                            ? schedule_.bytes(n)
                            : storage_bytes(n->type, strides.empty() ? contiguous_strides(n->shape()) : strides));
      }
      return job_.tuning->seconds(kernel, nest.parallel_extent, bytes);
    };
    it->second = job_.tuning->choose(text, schedule::kBlockingVariants, measure);
    require(it->second >= 0 && it->second < schedule::kBlockingVariants, "tuning chose a variant that does not exist");
  }
  return it->second == 0 ? std::move(lowered) : variant(it->second);
}

}  // namespace trainc::compiler
