// A front end that is not ATen's, in fifty lines: its programs are statements of text, a line each, which it writes by
// the formulas. What the compiler takes is made without anything of frontend/aten: names of inputs and lines of the
// program are the front end's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <sstream>

#include "../common/compare.h"
#include "../common/run_plan.h"
#include "compiler/compiler.h"
#include "frontend/formulas/activations.h"
#include "frontend/formulas/contractions.h"
#include "frontend/formulas/losses.h"
#include "frontend/formulas/normalization.h"
#include "frontend/formulas/softmax.h"
#include "graph/program.h"
#include "graph/verify.h"
#include "reference/reference.h"

namespace trainc {
namespace {

using formulas::Value;
using reference::Tensor;

/// "y = norm x scale shift": forward as it is read, then backward in the other order.
class Toy {
 public:
  Program read(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::vector<std::string> w{std::istream_iterator<std::string>(words), {}};
      b_.origin = "net.toy:" + std::to_string(++line_) + " (" + (w[1] == "=" ? w[2] : w[0]) + ")";
      statement(w);
    }
    while (!backward_.empty()) backward_.back()(), backward_.pop_back();
    for (const std::string& name : parameters_) {
      b_.origin = "net.toy: update of " + name;
      output(at(name) - grad_.at(name) * 0.5);
    }
    return std::move(program_);
  }

 private:
  Value at(const std::string& name) { return values_.at(name); }
  void output(Value v) { program_.graph.outputs.push_back({v.node, {}}); }
  void add(const std::string& name, Value g) {
    const auto [it, fresh] = grad_.emplace(name, g);
    if (!fresh) it->second = it->second + g;
  }
  /// Remembers what is done with the gradient of w[0], under the same line.
  template <class F> void later(const std::string& of, F f) {
    backward_.push_back([this, of, f, origin = b_.origin] { b_.origin = origin, f(grad_.at(of)); });
  }
  void statement(const std::vector<std::string>& w) {
    const std::string name = w[0], op = w[2];
    if (op == "data" || op == "parameter" || op == "labels") {
      Dims shape;
      for (size_t i = 3; i < w.size(); ++i) shape.push_back(std::stoll(w[i]));
      values_[name] = {&b_, b_.input(program_.graph.input_count++, {op == "labels" ? DType::I64 : DType::F32, shape})};
      program_.input_names.push_back(name);
      if (op == "parameter") parameters_.push_back(name);
    } else if (op == "linear") {
      const Value x = at(w[3]), weight = at(w[4]);
      values_[name] = formulas::linear(x, weight);
      later(name, [=, this](Value dy) {
        add(w[3], formulas::linear(dy, permute(weight, {1, 0})));
        add(w[4], formulas::linear(permute(x, {1, 0}), dy));
      });
    } else if (op == "norm") {
      const Value x = at(w[3]), scale = at(w[4]);
      const formulas::Normalized n = formulas::normalize(x, {1}, 1e-5);
      values_[name] = formulas::affine(n.value, scale, at(w[5]));
      later(name, [=, this](Value dy) {
        const formulas::NormGradients g = formulas::norm_backward(dy, x, n.mean, n.rstd, scale, {1}, {0});
        add(w[3], g.x), add(w[4], g.scale), add(w[5], g.shift);
      });
    } else if (op == "gelu") {
      values_[name] = formulas::gelu(at(w[3]));
      later(name, [=, this](Value dy) { add(w[3], formulas::gelu_backward(dy, at(w[3]))); });
    } else {
      const Value x = at(w[3]), logs = formulas::log_softmax(x, {1});
      const formulas::Classes classes = formulas::classes_of(x.shape(), at(w[4]), -1, std::nullopt);
      const Value loss = formulas::reduced(formulas::nll_loss(logs, classes), formulas::Reduction::Sum) /
                         formulas::nll_total_weight(logs, classes);
      output(loss);
      const Value one = number(loss, 1);
      later(name, [=, this](Value) {
        const Value dlogs =
            formulas::nll_loss_backward(one / formulas::nll_total_weight(logs, classes), x.shape(), classes);
        add(w[3], formulas::log_softmax_backward(dlogs, logs, {1}));
      });
      grad_.emplace(name, one);
    }
  }

  Program program_;
  Builder b_{program_.graph, ""};
  int line_ = 0;
  std::map<std::string, Value> values_, grad_;
  std::vector<std::string> parameters_;
  std::vector<std::function<void()>> backward_;
};

constexpr int64_t kRows = 7, kIn = 5, kHidden = 12, kClasses = 3;
const char* const kNet = R"(x = data 7 5
t = labels 7
w = parameter 5 12
scale = parameter 12
shift = parameter 12
v = parameter 12 3
h = linear x w
n = norm h scale shift
a = gelu n
y = linear a v
loss = cross_entropy y t)";

std::vector<Tensor> inputs_of(const Program& program) {
  std::vector<Tensor> inputs(program.graph.input_count);
  uint64_t state = 1;
  for (const Node& n : program.graph.nodes()) {
    if (n.op != Op::Input) continue;
    Tensor& t = inputs[n.as<InputAttr>().index];
    t.type = n.type;
    for (int64_t i = 0; i < n.type.numel(); ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      // one does not count
      if (n.dtype() == DType::I64) t.i.push_back(i == 2 ? -1 : static_cast<int64_t>(state >> 33) % kClasses);
      else t.f.push_back(static_cast<float>(static_cast<double>(state >> 40) * 0x1p-24 * 2 - 1));
    }
  }
  return inputs;
}

/// The forward once more, in loops.
double loss_of(const std::vector<Tensor>& in) {
  const auto &x = in[0].f, &w = in[2].f, &scale = in[3].f, &shift = in[4].f, &v = in[5].f;
  double total = 0, counted = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    double h[kHidden] = {}, y[kClasses] = {}, mean = 0, var = 0, sum = 0;
    for (int64_t j = 0; j < kHidden; ++j) {
      for (int64_t k = 0; k < kIn; ++k) h[j] += x[r * kIn + k] * w[k * kHidden + j];
      mean += h[j] / kHidden;
    }
    for (double z : h) var += (z - mean) * (z - mean) / kHidden;
    for (int64_t j = 0; j < kHidden; ++j) {
      const double n = (h[j] - mean) / std::sqrt(var + 1e-5) * scale[j] + shift[j],
                   a = n * 0.5 * std::erfc(-n / std::sqrt(2.0));
      for (int64_t c = 0; c < kClasses; ++c) y[c] += a * v[j * kClasses + c];
    }
    if (in[1].i[r] < 0) continue;
    for (double z : y) sum += std::exp(z);
    total += std::log(sum) - y[in[1].i[r]], counted += 1;
  }
  return total / counted;
}

TEST(SecondFrontEnd, ATrainingStepIsCompiledAndRuns) {
  const Program program = Toy().read(kNet);
  verify(program.graph);
  std::vector<Tensor> inputs = inputs_of(program);
  EXPECT_THAT(program.input_names, ::testing::ElementsAre("x", "t", "w", "scale", "shift", "v"));

  // the oracle's numbers are those of the loops and of their differences; constants of an f32 graph are f32
  const std::vector<Tensor> expected = reference::evaluate(program.graph, inputs);
  EXPECT_NEAR(expected[0].f[0], loss_of(inputs), 1e-8);
  for (size_t p = 2; p < inputs.size(); ++p)
    for (size_t i = 0; i < inputs[p].f.size(); ++i) {
      const double value = inputs[p].f[i];
      inputs[p].f[i] = value + 1e-5;
      const double above = loss_of(inputs);
      inputs[p].f[i] = value - 1e-5;
      const double below = loss_of(inputs);
      inputs[p].f[i] = value;
      ASSERT_NEAR(expected[p - 1].f[i], value - 0.5 * (above - below) / 2e-5, 1e-7)
          << program.input_names[p] << " element " << i;
    }

  // the plan's are the oracle's
  const plan::Plan plan = compiler::compile(Toy().read(kNet), "toy", {.target = cpu_target(cpu_level())});
  testing::expect_close(testing::run_plan(plan, inputs), expected, 2e-6);
  std::vector<std::string> origins;
  for (const plan::Step& s : plan.steps) origins.insert(origins.end(), s.origins.begin(), s.origins.end());
  EXPECT_THAT(origins, ::testing::Contains("net.toy:8 (norm)"));
  for (const std::string& origin : origins) EXPECT_THAT(origin, ::testing::StartsWith("net.toy"));
}

TEST(SecondFrontEnd, WhatItDoesNotCompileIsToldInItsWords) {
  Program program;
  Builder b{program.graph, "net.toy:3 (sort)"};
  const Type type{DType::F32, {4}};
  const Node* call = b.extern_call({.target = "toy.sort",
                                    .arguments = R"({"args":[{"$":0}],"kwargs":{}})",
                                    .results = {type},
                                    .reason = "a toy sorts nothing"},
                                   {b.input(0, type)});
  program.graph.outputs = {{b.result(call, 0), {}}};
  program.graph.input_count = 1;
  const plan::Plan plan = compiler::compile(std::move(program), "toy", {});
  const auto told = std::find_if(plan.remarks.begin(), plan.remarks.end(),
                                 [](const Remark& r) { return r.what == missed::kCompile; });
  ASSERT_NE(told, plan.remarks.end());
  EXPECT_EQ(told->stage, "frontend");
  EXPECT_EQ(told->reason, "a toy sorts nothing");
  EXPECT_EQ(told->detail, "toy.sort");
  EXPECT_THAT(told->origins, ::testing::ElementsAre("net.toy:3 (sort)"));
}

TEST(SecondFrontEnd, AnInputIsNamedAsTheFrontEndDoes) {
  Program program;  // an update whose second input is no tensor
  Builder b{program.graph, "update.toy:1"};
  const Node* p = b.input(0, {DType::F32, {8}});
  program.graph.outputs = {{b.unary(Op::Neg, p), {}}};
  program.graph.input_count = 2;
  program.input_names = {"parameter", "momentum"};
  try {
    compiler::compile_foreach(std::move(program), {0}, "update", {});
    FAIL() << "it was compiled";
  } catch (const InternalError& e) { EXPECT_THAT(e.what(), ::testing::HasSubstr("momentum of update is no tensor")); }
}

}  // namespace
}  // namespace trainc
