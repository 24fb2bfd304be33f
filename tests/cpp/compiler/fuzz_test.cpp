// Random graphs, compiled and run, against the oracle: every stage from passes to machine code at once.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "../common/adam.h"
#include "../common/compare.h"
#include "../common/copy_of.h"
#include "../common/levels.h"
#include "../common/random_attention.h"
#include "../common/random_joint.h"
#include "../common/random_loss.h"
#include "../common/run_plan.h"
#include "compiler/compiler.h"
#include "interpret/amx.h"
#include "runtime/cpu/random.h"
#include "runtime/cpu_device.h"

namespace trainc {
namespace {

using reference::Tensor;
using testing::close;
using testing::copy_of;
using testing::expect_close;
using testing::halves;

reference::Options oracle(reference::Precision precision = reference::Precision::Rounded) {
  return {.precision = precision, .random = {}, .call = {}};
}
compiler::CompileOptions options(CpuLevel level = cpu_level()) { return {.target = cpu_target(level)}; }

/// The levels that this machine can run, tiles in emulation.
std::vector<CpuLevel> levels() {
  interpret::emulate_amx();
  return testing::runnable_levels();
}

void expect_same(const Graph& graph, uint64_t seed, bool special, double tolerance, CpuLevel level = cpu_level()) {
  SCOPED_TRACE("seed " + std::to_string(seed) + " " + std::string(name_of(level)) + "\n" + print(graph));
  const auto inputs = halves(graph, seed, special);
  std::vector<Tensor> got;
  ASSERT_NO_THROW(got = testing::run_plan(compiler::compile(copy_of(graph), "fuzz", options(level)), inputs));
  expect_close(got, reference::evaluate(graph, inputs, oracle()), tolerance);
}

int count() { return std::getenv("TRAINC_FUZZ") ? std::atoi(std::getenv("TRAINC_FUZZ")) : 150; }
uint64_t first() { return std::getenv("TRAINC_SEED") ? std::atoi(std::getenv("TRAINC_SEED")) : 1; }

// Arithmetic that both sides round alike: any difference is a wrong index, a wrong order of kernels, a wrong mask.
TEST(Fuzz, ExactArithmetic) {
  testing::RandomGraphOptions o;
  o.transcendental = false;
  for (uint64_t seed = first(); seed < first() + count(); ++seed) {
    expect_same(testing::random_graph(seed, o), seed, false, 1e-4);
    if (HasFatalFailure()) return;
  }
}
// LLVM makes a minimum of halves of this where it can, and a call of fminf of that.
TEST(Compiler, ASelectionOfHalvesIsNoCall) {
  const Graph graph = parse(R"(%0 = input index=0 : f16[]
%1 = floor %0 : f16[]
%2 = constant value=-1 : f16[]
%3 = le %1 %2 : bool[]
%4 = select %3 %1 %2 : f16[]
return %4
)");
  for (uint64_t seed = 1; seed <= 5; ++seed) expect_same(graph, seed, seed > 2, 1e-4);
}
TEST(Fuzz, SpecialValues) {
  testing::RandomGraphOptions o;
  o.transcendental = false;
  for (uint64_t seed = first() + 5000; seed < first() + 5000 + count(); ++seed) {
    expect_same(testing::random_graph(seed, o), seed, true, 1e-4);
    if (HasFatalFailure()) return;
  }
}

// In f64 alone: what computes in f32 anywhere is off by far more than sums in another order are.
TEST(Fuzz, DoublePrecision) {
  testing::RandomGraphOptions o;
  o.transcendental = false, o.floats = DType::F64;
  for (uint64_t seed = first() + 30000; seed < first() + 30000 + count(); ++seed) {
    expect_same(testing::random_graph(seed, o), seed, seed % 3 == 0, 1e-4);
    if (HasFatalFailure()) return;
  }
}

// What is not the best level of the machine is run here; the others run that.
TEST(Fuzz, EveryLevel) {
  testing::RandomGraphOptions o;
  o.transcendental = false;
  for (CpuLevel level : levels())
    for (uint64_t seed = first() + 9000; seed < first() + 9000 + count() / 4; ++seed) {
      expect_same(testing::random_graph(seed, o), seed, false, 1e-4, level);
      if (HasFatalFailure()) return;
    }
}

// An element counts where the oracle gives the same with and without rounding; elsewhere the graph amplifies what no
// machine can promise.

/// Products of one matrix [n, k] with m rows at a time, as a recurrent layer has them; `transposed`: it lies as [k, n].
Graph of_one_matrix(DType dtype, int64_t batch, int64_t m, int64_t n, int64_t k, bool transposed) {
  constexpr int kTimes = 8;
  Graph g;
  Builder b{g, "here"};
  const Node* matrix = b.input(0, {dtype, transposed ? Dims{batch, k, n} : Dims{batch, n, k}});
  if (transposed) matrix = b.permute(matrix, {0, 2, 1});
  for (int t = 1; t <= kTimes; ++t) {
    const Node* product = b.contract(b.input(t, {dtype, {batch, m, k}}), matrix);
    g.outputs.push_back({t % 2 ? b.add(product, product) : product, {}});
  }
  g.input_count = kTimes + 1;
  return g;
}

// Copied into panels (schedule/prepare.cpp): whole ones, a part of one, and less than one; one tile of rows and more.
TEST(Fuzz, FewRowsMeetAMatrixAgainAndAgain) {
  uint64_t seed = 0;
  for (const CpuLevel level : levels())
    for (const DType dtype : {DType::F32, DType::F64})
      for (const bool transposed : {false, true})
        for (const auto& [batch, m, n, k] : std::vector<std::array<int64_t, 4>>{
                 {1, 3, 272, 33}, {1, 20, 301, 200}, {2, 24, 40, 7}, {1, 5, 13, 65}, {3, 2, 258, 1}, {1, 9, 17, 0}}) {
          const bool special = ++seed % 3 == 0;
          expect_same(of_one_matrix(dtype, batch, m, n, k, transposed), seed, special, 1e-4, level);
          if (HasFatalFailure()) return;
        }
}

TEST(Fuzz, Transcendental) {
  testing::RandomGraphOptions o;
  int64_t compared = 0, skipped = 0;
  for (uint64_t seed = first() + 20000; seed < first() + 20000 + count(); ++seed) {
    const Graph graph = testing::random_graph(seed, o);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(graph));
    const auto inputs = halves(graph, seed);
    const auto expected = reference::evaluate(graph, inputs, oracle()),
               truth = reference::evaluate(graph, inputs, oracle(reference::Precision::Truth));
    std::vector<Tensor> got;
    ASSERT_NO_THROW(got = testing::run_plan(compiler::compile(copy_of(graph), "fuzz", options()), inputs));
    const auto amplified = [&](size_t k, size_t i) {
      const bool agrees = is_float(got[k].type.dtype) ? close(expected[k].f[i], truth[k].f[i], 3e-5)
                                                      : expected[k].i[i] == truth[k].i[i];
      ++(agrees ? compared : skipped);
      return !agrees;
    };
    expect_close(got, expected, 1e-3, amplified, /*through_f32=*/true);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(compared, 20 * skipped);
}

/// torch.manual_seed(5): the state that eager's generator has then.
std::vector<uint8_t> generator_state() {
  std::vector<uint8_t> state(5056, 0);
  const int64_t header[] = {5, 1 | int64_t{1} << 32};  // seed; left = 1, seeded = 1
  std::memcpy(state.data(), header, sizeof header);
  uint32_t word = 5;
  for (uint32_t i = 0; i < 624; ++i) {
    if (i > 0) word = 1812433253u * (word ^ (word >> 30)) + i;
    std::memcpy(&state[24 + 8 * i], &word, 4);
  }
  return state;
}
runtime::Generator generator(std::vector<uint8_t>& state) {
  return {[&] { return state; },
          [&](const std::vector<uint8_t>& from, const std::vector<uint8_t>& to) {
            if (state != from) return false;
            state = to;
            return true;
          }};
}
/// The oracle with the masks that `plan` draws first of all, from that state, each as bytes; counts those that it keeps
/// as bits.
reference::Options with_masks_of(const plan::Plan& plan, int64_t* bits = nullptr) {
  runtime::MersenneTwister twister(generator_state());
  std::map<int64_t, Tensor> masks;
  for (const plan::Step& s : plan.steps) {
    if (s.kind != plan::StepKind::Random) continue;
    const plan::Buffer& b = plan.buffers[s.writes[0]];
    Tensor mask{{DType::Bool, b.shape}, {}, {}};
    std::vector<uint8_t> bytes(static_cast<size_t>(mask.type.numel()));
    runtime::bernoulli(mask_generator(), twister, s.p, bytes.data(), mask.type.numel());
    mask.i.assign(bytes.begin(), bytes.end());
    masks[std::stoll(s.name.substr(s.name.find('_') + 1))] = std::move(mask);
    if (bits) *bits += b.bits;
  }
  reference::Options options = oracle();
  options.random = [masks](const Node* n) {
    const auto it = masks.find(n->as<RandomAttr>().draw);  // one that makes no difference is not drawn
    return it != masks.end() && it->second.type == n->type
               ? it->second
               : Tensor{n->type, {}, std::vector<int64_t>(n->type.numel(), 1)};
  };
  return options;
}

// Forward and backward plan of a joint graph, with the arena of the handle between them; deferred outputs read.
struct Arena {
  std::vector<uint8_t> memory;
  void* start;
  explicit Arena(int64_t bytes)
      : memory(bytes + 64, 0xCD), start(memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64) {}
};
std::vector<Tensor> run_joint(const compiler::JointGraph& compiled, const testing::RandomJoint& joint,
                              const std::vector<Tensor>& inputs) {
  Arena room(compiled.saved_bytes());
  std::vector<uint8_t>& memory = room.memory;
  void* arena = room.start;
  auto state = generator_state();
  std::vector<Tensor> got = testing::run_plan(
      compiled.forward(options()), {inputs.begin(), inputs.begin() + joint.primals}, arena, generator(state));
  if (const auto& places = compiled.deferred_outputs(); !places.empty()) {
    std::vector<Tensor> deferred = testing::run_plan(compiled.deferred(options()), {}, arena);
    for (size_t i = 0; i < places.size(); ++i) got.at(places[i]) = std::move(deferred[i]);
  }
  std::vector<Tensor> in;
  for (int64_t i : compiled.saved_inputs()) in.push_back(i < joint.primals ? inputs[i] : got.at(i - joint.primals));
  in.insert(in.end(), inputs.begin() + joint.primals, inputs.end());
  const std::vector<bool> defined(inputs.size() - joint.primals, true);
  const std::vector<uint8_t> before = memory;
  const auto retaining = testing::run_plan(compiled.backward(defined, options(), {}, nullptr, false), in, arena);
  EXPECT_EQ(memory, before) << "a backward that must leave the arena as it is";
  size_t next = 0;
  for (Tensor& t : testing::run_plan(compiled.backward(defined, options()), in, arena)) {
    EXPECT_EQ(testing::difference(t, retaining.at(next++)), "")
        << "gradient " << next - 1 << " where the arena may be overwritten";
    got.push_back(std::move(t));
  }
  return got;
}
void expect_same_joint(const testing::RandomJoint& joint, uint64_t seed, bool checkpointed, int64_t* bits = nullptr) {
  SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(joint.graph));
  const auto inputs = halves(joint.graph, seed);
  Program program = copy_of(joint.graph);
  if (checkpointed)
    for (const Node* n : program.graph.live())
      if (n->id % 2) program.must_recompute.push_back(n);
  std::vector<Tensor> got;
  reference::Options with_masks;
  try {
    const compiler::JointGraph compiled(std::move(program), joint.primals, joint.forward_outputs, "fuzz", options(),
                                        seed % 2 ? 1 : cost::kDeferredBytes);
    got = run_joint(compiled, joint, inputs);
    with_masks = with_masks_of(compiled.forward(options()), bits);
  } catch (const std::exception& e) { FAIL() << e.what(); }
  expect_close(got, reference::evaluate(joint.graph, inputs, with_masks), 1e-4);
}
/// Masks over what is given, one for all that has its shape: those of the forward's results are read by the backward
/// too.
void drop_out(testing::RandomJoint& joint) {
  Builder b{joint.graph, {}};
  std::map<Dims, const Node*> masks;
  for (Output& o : joint.graph.outputs) {
    if (!o.value) continue;
    auto [it, fresh] = masks.emplace(o.value->shape(), nullptr);
    if (fresh) it->second = b.random(o.value->shape(), {static_cast<int64_t>(masks.size()), 0.75});
    const Node* other =
        o.value->dtype() == DType::Bool ? b.unary(Op::Not, o.value) : b.full(o.value->dtype(), o.value->shape(), 0);
    o.value = b.select(it->second, o.value, other);
  }
}
TEST(Fuzz, JointGraphs) {
  testing::RandomGraphOptions o;
  o.transcendental = false;
  int64_t bits = 0;
  for (uint64_t seed = first() + 30000; seed < first() + 30000 + count() / 2; ++seed) {
    testing::RandomJoint joint = testing::random_joint(seed, o);
    if (seed % 2) drop_out(joint);
    expect_same_joint(joint, seed, seed % 3 == 0, &bits);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(bits, count() / 6) << "masks are kept as bits";
}

// Attention as one kernel, forward, backward, and cut in two where its probabilities are not kept.
TEST(Fuzz, Attention) {
  for (CpuLevel level : levels())
    for (uint64_t seed = first() + 60000; seed < first() + 60000 + count() / 16; ++seed) {
      testing::AttentionCase c = testing::random_attention_case(seed);
      c.dropout = false;
      expect_same(testing::attention_graph(c), seed, seed % 5 == 0 && !c.causal, 1e-3, level);
      if (HasFatalFailure()) return;
    }
}
TEST(Fuzz, JointAttention) {
  int64_t bits = 0;
  for (uint64_t seed = first() + 70000; seed < first() + 70000 + count() / 8; ++seed) {
    testing::AttentionCase c = testing::random_attention_case(seed);
    c.bf16 = false;
    expect_same_joint(testing::attention_joint(c), seed, seed % 7 == 0, &bits);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(bits, 0) << "masks are kept as bits";
}

// What is computed again for want of memory is what was computed the first time, to the bit; real values, whose sums
// round.
TEST(Fuzz, BudgetsChangeNoBit) {
  int64_t again = 0;
  for (uint64_t seed = first() + 80000; seed < first() + 80000 + count() / 3; ++seed) {
    const auto joint = testing::random_joint(seed, {});
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(joint.graph));
    const auto inputs = testing::random_inputs(joint.graph, seed);
    const auto make = [&](const char* name) {
      return compiler::JointGraph(copy_of(joint.graph), joint.primals, joint.forward_outputs, name, options(),
                                  cost::kDeferredBytes, seed % 2 == 0);
    };
    compiler::JointGraph all = make("all"), least = make("least");
    const int64_t wanted = all.footprint(options()).total();
    const compiler::Footprint found = least.fit(0, options());
    EXPECT_LE(found.total(), wanted);
    EXPECT_GE(found.again_flops, 0);
    least.cut(1e-9);  // all that can be
    again += least.footprint(options()).again_flops > 0;
    const auto a = run_joint(all, joint, inputs), b = run_joint(least, joint, inputs);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(testing::difference(a[i], b.at(i)), "") << "output " << i;
    if (HasFailure()) return;
  }
  EXPECT_GT(again, count() / 60) << "the random graphs test nothing";
}

// Losses in chunks of rows: near the truth, and the same bits whatever is computed again, with the loss a result beside
// others or alone, in one plan or two.
compiler::CompileOptions chunks_of(int64_t rows) {
  compiler::CompileOptions o = options();
  o.loss_chunk_rows = rows, o.loss_chunk_bytes = std::numeric_limits<int64_t>::min() / 2;
  return o;
}
TEST(Fuzz, LossesInChunks) {
  int64_t again = 0;
  for (uint64_t seed = first() + 90000; seed < first() + 90000 + count() / 12; ++seed) {
    testing::LossCase c = testing::random_loss_case(seed);
    c.bf16 = false;  // its roundings hide everything; test_loss_chunks.py compares it with the framework
    const testing::RandomJoint joint = testing::loss_joint(c);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(joint.graph));
    const auto inputs = testing::random_inputs(joint.graph, seed);
    const auto make = [&] {
      return compiler::JointGraph(copy_of(joint.graph), joint.primals, joint.forward_outputs, "loss",
                                  chunks_of(1 + static_cast<int64_t>(seed % 11)), seed % 2 ? 1 : cost::kDeferredBytes,
                                  seed % 4 < 2);
    };
    compiler::JointGraph all = make(), least = make();
    least.cut(1e-9);
    again += least.footprint(options()).again_flops > 0;
    const auto a = run_joint(all, joint, inputs), b = run_joint(least, joint, inputs);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(testing::difference(a[i], b.at(i)), "") << "output " << i;
    expect_close(a, reference::evaluate(joint.graph, inputs, oracle(reference::Precision::Truth)), 2e-5);
    if (HasFailure()) return;
  }
  EXPECT_GT(again, count() / 60) << "nothing is computed again";
}

// Rows that labels hide, in plans: forward and backward, or one plan of both; whatever the labels of the run, none or
// all of them hidden; with poisoned memory, for what was not computed is read and not chosen.
TEST(Fuzz, HiddenRows) {
  int64_t guarded = 0, plans = 0;
  for (uint64_t seed = first() + 95000; seed < first() + 95000 + count() / 8; ++seed) {
    testing::LossCase c = testing::random_loss_case(seed);
    c.bf16 = false;
    const testing::RandomJoint joint = testing::loss_joint(c);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(joint.graph));
    compiler::CompileOptions o = options();
    o.loss_chunk_rows = 1 + static_cast<int64_t>(seed % 23), o.skip_hidden_flops = 0, o.skip_padding = true;
    const bool one = seed % 2;
    compiler::JointGraph compiled(copy_of(joint.graph), joint.primals, joint.forward_outputs, "loss", o,
                                  std::numeric_limits<int64_t>::max(), one);
    if (seed % 3 == 0) compiled.cut(1e-9);  // all that can be is computed again in the backward
    const std::vector<bool> defined(joint.graph.input_count - joint.primals, true);
    const plan::Plan forward = one ? compiled.step(defined, {}, {}, o) : compiled.forward(o),
                     backward = one ? plan::Plan{} : compiled.backward(defined, o);
    for (const plan::Step& s : forward.steps) guarded += s.guard >= 0 && s.flops > 0;
    ++plans;
    const auto run = [&](const std::vector<Tensor>& inputs) {
      if (one) return testing::run_plan(forward, inputs);
      Arena arena(compiled.saved_bytes());
      std::vector<Tensor> got =
          testing::run_plan(forward, {inputs.begin(), inputs.begin() + joint.primals}, arena.start);
      std::vector<Tensor> in;
      for (int64_t i : compiled.saved_inputs()) in.push_back(i < joint.primals ? inputs[i] : got.at(i - joint.primals));
      in.insert(in.end(), inputs.begin() + joint.primals, inputs.end());
      for (Tensor& t : testing::run_plan(backward, in, arena.start)) got.push_back(std::move(t));
      return got;
    };
    for (const int hidden : {0, 4, 8, 10}) {
      auto inputs = testing::random_inputs(joint.graph, seed);
      testing::hide_labels(inputs, seed, hidden);
      const auto got = run(inputs);
      expect_close(got, reference::evaluate(joint.graph, inputs, oracle(reference::Precision::Truth)), 2e-5);
      setenv("TRAINC_DEBUG", "poison", 1);
      const auto poisoned = run(inputs);
      unsetenv("TRAINC_DEBUG");
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(testing::difference(got[i], poisoned.at(i)), "") << "output " << i << ", poisoned";
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(guarded, 4 * plans) << "few kernels have a guard";
}

// A joint graph and updates as one plan: p + rate * gradient over p, where p is a primal of the gradient's type or a
// tensor beside them.
Graph descend(int64_t n) {
  Graph g;
  Builder b{g, {}};
  const Node *p = b.input(0, {DType::F32, {n}}), *grad = b.input(1, {DType::F32, {n}}),
             *rate = b.input(2, {DType::F32, {}});
  g.outputs = {{b.add(p, b.mul(b.broadcast(rate, {n}), grad)), {}}};
  return g;
}
void expect_same_step(const testing::RandomJoint& joint, uint64_t seed, int64_t& in_place,
                      const compiler::CompileOptions& how = options(), bool one_plan = false) {
  SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(joint.graph));
  auto inputs = halves(joint.graph, seed);
  auto expected = reference::evaluate(joint.graph, inputs, oracle());
  Program formula;
  formula.graph = descend(8);
  formula.graph.input_count = 3;
  const std::vector<plan::Foreach> formulas{compiler::compile_foreach(std::move(formula), {0}, "descend", options())};
  const int64_t rate = static_cast<int64_t>(inputs.size());
  inputs.push_back({{DType::F32, {}}, {0.25}, {}});
  std::vector<Tensor> wanted = inputs;
  std::vector<compiler::Update> updates;
  std::set<int64_t> updated;
  for (size_t i = joint.forward_outputs; i < joint.graph.outputs.size(); ++i) {
    const Node* n = joint.graph.outputs[i].value;
    if (!n || n->dtype() != DType::F32 || i % 4 == 3) continue;
    int64_t place = static_cast<int64_t>(inputs.size());
    for (int64_t p = 0; p < joint.primals; ++p)
      if (inputs[p].type == n->type && !updated.count(p)) place = p;
    if (place == static_cast<int64_t>(inputs.size())) {
      inputs.push_back({n->type, std::vector<double>(n->type.numel(), 1.5), {}});
      wanted.push_back(inputs.back());
    } else {
      ++in_place;
    }
    updated.insert(place);
    for (size_t k = 0; k < wanted[place].f.size(); ++k) wanted[place].f[k] += 0.25 * expected[i].f[k];
    expected[i] = {};
    updates.push_back(
        {.formula = 0, .gradient = static_cast<int64_t>(i) - joint.forward_outputs, .inputs = {place, -1, rate}});
  }
  const compiler::JointGraph compiled(copy_of(joint.graph), joint.primals, joint.forward_outputs, "fuzz", how,
                                      std::numeric_limits<int64_t>::max(), one_plan);
  const std::vector<bool> defined(joint.graph.input_count - joint.primals, true);
  std::vector<Tensor> got, after;
  plan::Plan plan = compiled.step(defined, formulas, updates, options());
  plan.input_count = static_cast<int64_t>(inputs.size());
  got = testing::run_plan(plan, inputs, nullptr, {}, &after);
  expect_close(got, expected, 1e-4);
  expect_close(after, wanted, 1e-4);

  // The same as a forward, and a backward with the updates: to the bit.
  Arena arena(compiled.saved_bytes());
  std::vector<Tensor> apart =
      testing::run_plan(compiled.forward(options()), {inputs.begin(), inputs.begin() + joint.primals}, arena.start);
  std::vector<Tensor> late(inputs.begin(), inputs.begin() + rate), late_after;
  late.insert(late.end(), apart.begin(), apart.end());
  late.insert(late.end(), inputs.begin() + rate, inputs.end());
  for (compiler::Update& u : updates)
    for (int64_t& i : u.inputs) i += i >= rate ? joint.forward_outputs : 0;
  plan::Plan backward = compiled.backward_step(defined, formulas, updates, options());
  backward.input_count = static_cast<int64_t>(late.size());
  for (Tensor& t : testing::run_plan(backward, late, arena.start, {}, &late_after)) apart.push_back(std::move(t));
  late_after.erase(late_after.begin() + rate, late_after.begin() + rate + joint.forward_outputs);
  ASSERT_EQ(apart.size(), got.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(testing::difference(apart[i], got[i]), "") << "output " << i;
  for (size_t i = 0; i < after.size(); ++i)
    EXPECT_EQ(testing::difference(late_after[i], after[i]), "") << "input " << i << " afterwards";
}
TEST(Fuzz, Steps) {
  testing::RandomGraphOptions o;
  o.transcendental = false;
  int64_t in_place = 0;
  for (uint64_t seed = first() + 50000; seed < first() + 50000 + count() / 2; ++seed) {
    ASSERT_NO_THROW(expect_same_step(testing::random_joint(seed, o), seed, in_place));
    if (HasFailure()) return;
  }
  EXPECT_GT(in_place, count() / 20) << "primals are updated";
}
TEST(Fuzz, StepsOfLossesInChunks) {
  int64_t in_place = 0;
  for (uint64_t seed = first() + 100000; seed < first() + 100000 + count() / 6; ++seed) {
    testing::LossCase c = testing::random_loss_case(seed);
    c.bf16 = false;
    expect_same_step(testing::loss_joint(c), seed, in_place, chunks_of(1 + static_cast<int64_t>(seed % 11)), true);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(in_place, count() / 20) << "primals are updated";
}

// The masks are results too: the oracle computes with those that were drawn.
TEST(Fuzz, RandomMasks) {
  testing::RandomGraphOptions o;
  o.transcendental = false;
  for (uint64_t seed = first() + 40000; seed < first() + 40000 + count() / 4; ++seed) {
    Graph graph = testing::random_graph(seed, o);
    Builder b{graph, {}};
    std::vector<const Node*> masks;
    for (Output& out : graph.outputs) {
      masks.push_back(b.random(out.value->shape(), {static_cast<int64_t>(masks.size()), 0.75}));
      out.value = b.select(masks.back(), out.value, b.full(out.value->dtype(), out.value->shape(), 0));
    }
    for (const Node* mask : masks) graph.outputs.push_back({mask, {}});
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(graph));
    const auto inputs = halves(graph, seed);
    auto state = generator_state();
    const auto before = state;
    std::vector<Tensor> got;
    ASSERT_NO_THROW(got = testing::run_plan(compiler::compile(copy_of(graph), "fuzz", options()), inputs, nullptr,
                                            generator(state)));
    const size_t first_mask = masks.size();
    auto with_masks = oracle();
    int64_t drawn = 0, on = 0;
    with_masks.random = [&](const Node* n) { return got[first_mask + n->as<RandomAttr>().draw]; };
    for (size_t m = first_mask; m < got.size(); ++m)
      for (int64_t v : got[m].i) ++drawn, on += v;
    EXPECT_TRUE(drawn <= 200 || (on > drawn / 2 && on < drawn)) << on << " of " << drawn;
    EXPECT_EQ(state == before, drawn == 0) << "the generator's state after";
    expect_close(got, reference::evaluate(graph, inputs, with_masks), 1e-4);
    if (HasFailure()) return;
  }
}

// --- an optimizer's step over many tensors
void expect_same_foreach(DType dtype, CpuLevel level) {
  const plan::Foreach step =
      compiler::compile_foreach(copy_of(testing::adam(8, dtype)), {0, 2, 3}, "adam", options(level));
  ASSERT_EQ(step.inputs.size(), 6u);
  runtime::CpuForeach foreach (plan::load_foreach(plan::save(step)));
  testing::AdamTensors tensors(dtype);
  foreach
    .run(tensors.pointers, tensors.numels, tensors.scalars);
  for (size_t t = 0; t < tensors.numels.size(); ++t) {
    SCOPED_TRACE(std::to_string(tensors.numels[t]) + " elements, " + std::string(name_of(level)));
    expect_close(tensors.written(t),
                 reference::evaluate(testing::adam(tensors.numels[t], dtype), tensors.inputs[t], oracle()), 1e-5);
    EXPECT_EQ(tensors.trespassed(t), "");
  }
}
TEST(Foreach, AdamOverTensorsOfAnySize) {
  for (CpuLevel level : levels())
    for (DType dtype : {DType::F32, DType::BF16}) expect_same_foreach(dtype, level);
}
TEST(Foreach, NoCodeWhereItIsOnlyLookedAt) {
  const std::vector<int64_t> in_place{0, 2, 3};
  const plan::Foreach looked_at =
      compiler::lower_foreach(copy_of(testing::adam(8, DType::F32)), in_place, "adam", options()).foreach;
  const plan::Foreach whole =
      compiler::compile_foreach(copy_of(testing::adam(8, DType::F32)), in_place, "adam", options());
  EXPECT_TRUE(looked_at.kernel.code.empty());
  EXPECT_FALSE(whole.kernel.code.empty());
  EXPECT_EQ(looked_at.kernel.scratch_bytes, whole.kernel.scratch_bytes);
  EXPECT_EQ(looked_at.inputs.size(), whole.inputs.size());
}

void expect_text(const char* text, double tolerance = 1e-5) { expect_same(parse(text), 7, false, tolerance); }

TEST(Compile, LayerNorm) {
  expect_text(R"(%0 = input index=0 : f32[5,7,33]
%1 = reduce %0 kind=sum axes=[2] : f32[5,7]
%2 = reshape %1 : f32[5,7,1]
%3 = broadcast %2 : f32[5,7,33]
%4 = sub %0 %3 : f32[5,7,33]
%5 = mul %4 %4 : f32[5,7,33]
%6 = reduce %5 kind=sum axes=[2] : f32[5,7]
%7 = rsqrt %6 : f32[5,7]
%8 = reshape %7 : f32[5,7,1]
%9 = broadcast %8 : f32[5,7,33]
%10 = mul %4 %9 : f32[5,7,33]
return %10 %7
)");
}

TEST(Compile, ValuesWithoutElements) {  // nobody makes them, nobody may wait for them
  expect_text(
      "%0 = input index=0 : f32[7,0]\n%1 = exp %0 : f32[7,0]\n%2 = constant value=1.5 : f32[]\n%3 = pad %1 %2 "
      "low=[2,0] high=[0,2] : f32[9,2]\nreturn %1 %3\n");
  expect_text(
      "%0 = input index=0 : f32[7,0]\n%1 = exp %0 : f32[7,0]\n%2 = reshape %1 : f32[1,7,0]\n%3 = contract %2 %2 : "
      "f32[1,7,7]\nreturn %3\n");
  expect_text(
      "%0 = input index=0 : f32[3,0]\n%1 = exp %0 : f32[3,0]\n%2 = input index=1 : f32[3,4]\n%3 = concat %1 %2 axis=1 "
      ": f32[3,4]\nreturn %3 %1\n");
}
TEST(Compile, UndefinedTangentsAreNotRead) {  // gradients: t0 * y + t1 * x and t0 * x
  const char* text = R"(%0 = input index=0 : f32[300]
%1 = input index=1 : f32[300]
%2 = mul %0 %1 : f32[300]
%3 = input index=2 : f32[300]
%4 = mul %3 %1 : f32[300]
%5 = input index=3 : f32[300]
%6 = mul %5 %0 : f32[300]
%7 = add %4 %6 : f32[300]
%8 = mul %3 %0 : f32[300]
return %2 %7 %8
)";
  const Graph graph = parse(text);
  auto inputs = halves(graph, 3);
  const compiler::JointGraph joint(copy_of(graph), 2, 1, "undefined", options());
  EXPECT_EQ(joint.saved_bytes(), 0);
  for (const std::vector<bool>& defined : {std::vector<bool>{true, false}, {false, true}, {false, false}}) {
    for (size_t i = 0; i < 2; ++i)
      if (!defined[i]) inputs[2 + i].f.assign(300, 0.0);
    const auto expected = reference::evaluate(graph, inputs, oracle());
    std::vector<Tensor> in;
    for (int64_t i : joint.saved_inputs()) in.push_back(inputs.at(i));
    for (size_t i = 0; i < 2; ++i) {
      in.push_back(inputs[2 + i]);
      if (!defined[i]) in.back().f.assign(300, std::numeric_limits<double>::quiet_NaN());
    }
    const auto got = testing::run_plan(joint.backward(defined, options()), in);
    ASSERT_EQ(got.size(), 2u);
    for (size_t i = 0; i < 2; ++i)  // a gradient that is nothing but zero may be None
      if (!got[i].f.empty()) expect_close({got[i]}, {expected[i + 1]}, 0);
    EXPECT_TRUE(!defined[0] || (!got[0].f.empty() && !got[1].f.empty()));
    inputs = halves(graph, 3);
  }
}

}  // namespace
}  // namespace trainc
