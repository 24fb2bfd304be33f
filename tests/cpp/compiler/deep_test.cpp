// Long programs: chains of operations through every stage, on a stack that is a small part of a thread's usual one
// (nothing recurs as deep as a program is long), and in time that grows with their length.
#include <gtest/gtest.h>
#include <pthread.h>

#include <cstdlib>
#include <exception>
#include <functional>

#include "../common/compare.h"
#include "../common/copy_of.h"
#include "../common/random_graph.h"
#include "../common/run_plan.h"
#include "compiler/compiler.h"
#include "graph/text.h"
#include "schedule/cut.h"
#include "schedule/prepare.h"
#include "schedule/schedule.h"

namespace trainc {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kFrames = 8;  // as large, with what AddressSanitizer puts around each variable
#else
constexpr size_t kFrames = 1;
#endif
constexpr size_t kSmall = kFrames << 20, kUsual = 8 * kSmall;

/// Runs `body` on a thread with a stack of so many bytes.
void on_a_stack(size_t bytes, const std::function<void()>& body) {
  struct Work {
    const std::function<void()>& body;
    std::string failure;
  } work{body, ""};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, bytes);
  pthread_t thread;
  ASSERT_EQ(pthread_create(
                &thread, &attributes,
                [](void* p) -> void* {
                  Work& w = *static_cast<Work*>(p);
                  try {
                    w.body();
                  } catch (const std::exception& e) { w.failure = e.what(); }
                  return nullptr;
                },
                &work),
            0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  EXPECT_EQ(work.failure, "");
}

const Type kMatrix{DType::F32, {6, 20}};
const Dims kRows{6}, kWhole{1, 6, 20};

/// The next link of a chain: of what there is so far, an input of the same type, and its number.
using Link = const Node* (*)(Builder&, const Node* so_far, const Node* x, int i);
struct Chain {
  const char* name;
  Link link;
  int short_ = 600;  // links of a chain that is compiled and run
};
const Node* over_rows(Builder& b, const Node* n) {
  return b.broadcast(b.reduce(ReduceKind::Max, n, {1}, true), kMatrix.shape);
}
const Chain kChains[] = {
    {"cheap",
     [](Builder& b, const Node* h, const Node* x, int i) { return b.binary(i % 2 ? Op::Max : Op::Sub, h, x); }},
    {"dear", [](Builder& b, const Node* h, const Node* x, int) { return b.unary(Op::Tanh, b.add(h, x)); }, 150},
    {"one operand twice",
     [](Builder& b, const Node* h, const Node*, int i) { return b.binary(i % 2 ? Op::Add : Op::Min, h, h); }},
    {"casts", [](Builder& b, const Node* h, const Node* x,
                 int) { return b.cast(b.cast(b.sub(h, x), DType::BF16), DType::F32); }},
    {"selects", [](Builder& b, const Node* h, const Node* x,
                   int) { return b.select(b.binary(Op::Lt, h, x), b.unary(Op::Neg, x), h); }},
    {"permutes",
     [](Builder& b, const Node* h, const Node*, int i) {
       return i % 2 ? b.reshape(h, kMatrix.shape) : b.permute(b.reshape(h, {4, 5, 6}), {2, 1, 0});
     }},
    {"pads and slices",
     [](Builder& b, const Node* h, const Node*, int i) {
       return i % 2 ? b.slice(h, {0, 1}, {6, 20}, {1, 1}) : b.pad(h, b.constant(DType::F32, i), {0, 1}, {0, 1});
     }},
    // each element is read twice by index arithmetic alone
    {"halves swapped",
     [](Builder& b, const Node* h, const Node*, int) {
       const Node* parts[] = {b.reverse(h, {0}), h};
       return b.slice(b.concat(parts, 0), {3, 0}, kMatrix.shape, {1, 1});
     },
     60},
    {"windows",
     [](Builder& b, const Node* h, const Node*, int) {
       return b.slice(
           b.reshape(b.window(b.pad(h, b.constant(DType::F32, 0), {0, 1}, {0, 1}), {{1}, {2}, {1}, {2}}), {6, 40}),
           {0, 0}, {6, 20}, {1, 2});
     },
     100},
    {"gathers",
     [](Builder& b, const Node* h, const Node*, int i) {
       const Node* at = b.iota(DType::I64, kMatrix.shape, 0);
       return b.gather(
           h,
           b.binary(Op::Mod, b.add(at, b.full(DType::I64, kMatrix.shape, i % 5)), b.full(DType::I64, kMatrix.shape, 6)),
           0);
     },
     150},
    {"scatters",
     [](Builder& b, const Node* h, const Node* x, int) {
       return b.scatter(ScatterKind::Last, x, b.iota(DType::I64, kMatrix.shape, 0), h, 0);
     },
     100},
    {"scans", [](Builder& b, const Node* h, const Node* x, int) { return b.binary(Op::Min, b.scan(h, 1), x); }, 100},
    {"softmaxes", [](Builder& b, const Node* h, const Node* x, int) { return b.add(b.sub(h, over_rows(b, h)), x); }},
    {"dear softmaxes",
     [](Builder& b, const Node* h, const Node* x, int) {
       return b.add(b.unary(Op::Tanh, b.sub(h, over_rows(b, h))), x);
     },
     150},
    {"sums of columns",
     [](Builder& b, const Node* h, const Node* x, int) {
       return b.sub(x, b.broadcast(b.reduce(ReduceKind::Min, h, {0}, true), kMatrix.shape));
     },
     100},
    {"row values",
     [](Builder& b, const Node* h, const Node* x, int) {
       const Node* row = b.reduce(ReduceKind::Max, h, {1}, true);
       return b.broadcast(b.sub(row, b.slice_axis(x, 1, 0, 1)), kMatrix.shape);
     }},
    {"products",
     [](Builder& b, const Node* h, const Node* x, int) {
       const Node* square = b.contract(b.reshape(h, kWhole), b.reshape(x, kWhole));  // [1, 6, 6]
       return b.unary(Op::Sign,
                      b.reshape(b.contract(square, b.permute(b.reshape(x, kWhole), {0, 2, 1})), kMatrix.shape));
     },
     60},
    {"sum of products",
     [](Builder& b, const Node* h, const Node* x, int i) {
       const Node* lhs = b.unary(Op::Floor, b.mul(b.slice_axis(x, 1, i % 20, 1), b.full(DType::F32, {6, 1}, i)));
       return b.add(
           h, b.reshape(b.contract(b.reshape(lhs, {1, 6, 1}), b.reshape(b.slice_axis(x, 0, i % 6, 1), {1, 20, 1})),
                        kMatrix.shape));
     },
     60},
    {"draws",
     [](Builder& b, const Node* h, const Node* x, int i) {
       return b.select(b.random(kMatrix.shape, {i, 1.0}), b.binary(Op::Max, h, x), x);
     },
     60},
    {"epilogues",
     [](Builder& b, const Node* h, const Node* x, int i) {
       return i ? b.binary(i % 2 ? Op::Max : Op::Sub, h, x)
                : b.reshape(b.contract(b.reshape(x, kWhole), b.cast(b.iota(DType::I64, {1, 20, 20}, 1), DType::F32)),
                            kMatrix.shape);
     }},
};

Graph chain_of(const Chain& chain, int links) {
  Graph g;
  Builder b{g, {}};
  const Node* x = b.input(1, kMatrix);
  const Node* h = b.input(0, kMatrix);
  for (int i = 0; i < links; ++i) h = chain.link(b, h, x, i);
  g.outputs = {{h, {}}};
  g.input_count = 2;
  return g;
}
int links() { return std::getenv("TRAINC_DEEP") ? std::atoi(std::getenv("TRAINC_DEEP")) : 200; }
const compiler::CompileOptions kOptions{.target = cpu_target(cpu_level())};

class Deep : public ::testing::TestWithParam<Chain> {};
INSTANTIATE_TEST_SUITE_P(Chains, Deep, ::testing::ValuesIn(kChains), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

TEST_P(Deep, GoesThroughEveryStage) {
  on_a_stack(kSmall, [&] {
    const Graph graph = chain_of(GetParam(), links());
    const Graph again = parse(print(graph));
    EXPECT_EQ(again.live().size(), graph.live().size());
    compiler::lower(testing::copy_of(graph), "deep", kOptions);
  });
}
// The chain is of the forward, and the backward wants what it ends in.
TEST_P(Deep, IsCutInTwo) {
  on_a_stack(kSmall, [&] {
    Graph graph = chain_of(GetParam(), links());
    Builder b{graph, {}};
    graph.outputs.push_back({b.mul(b.input(2, kMatrix), graph.outputs[0].value), {}});
    graph.input_count = 3;
    compiler::JointGraph joint(testing::copy_of(graph), 2, 1, "deep", kOptions);
    joint.lower_forward(kOptions);
    joint.lower_backward({true}, kOptions);
  });
}
TEST_P(Deep, GivesWhatTheReferenceGives) {
  const Graph graph = chain_of(GetParam(), GetParam().short_);
  const auto inputs = testing::halves(graph, 3);
  reference::Options rounded{.precision = reference::Precision::Rounded, .random = {}, .call = {}};
  rounded.random = [](const Node* n) {
    return reference::Tensor{n->type, {}, std::vector<int64_t>(static_cast<size_t>(n->type.numel()), 1)};
  };
  std::vector<uint8_t> state(5056, 0);
  state[8] = 1, state[12] = 1;
  std::vector<reference::Tensor> got;
  on_a_stack(kUsual, [&] {
    got = testing::run_plan(compiler::compile(testing::copy_of(graph), "deep", kOptions), inputs, nullptr,
                            {[&] { return state; }, [&](const std::vector<uint8_t>&,
                                                        const std::vector<uint8_t>& to) { return state = to, true; }});
  });
  testing::expect_close(got, reference::evaluate(graph, inputs, rounded), 1e-4);
}

}  // namespace
}  // namespace trainc
