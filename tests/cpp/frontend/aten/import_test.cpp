// What the importer makes of texts: rows, extern nodes, memory order at both ends, and what it refuses with which
// words. The numbers of every row are held against eager in tests/python/graph/test_ops.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "frontend/aten/import.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "reference/reference.h"
#include "support/cpu.h"

namespace trainc::frontend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json val(const char* dtype, Dims shape, Dims strides = {}) {
  Json j = {{"dtype", dtype}, {"shape", shape}};
  j["stride"] = strides.empty() ? contiguous_strides(shape) : strides;
  return j;
}
Json ref(const char* name) {
  Json j = Json::object();
  j["n"] = name;
  return j;
}
Json input(const char* name, Json v) { return {{"op", "placeholder"}, {"name", name}, {"val", v}}; }
Json call(const char* name, const char* target, Json args, Json v, Json kwargs = Json::object()) {
  return {{"op", "call"},     {"name", name}, {"target", target},       {"args", args},
          {"kwargs", kwargs}, {"val", v},     {"origin", "model.py:41"}};
}
Json output(Json args) { return {{"op", "output"}, {"args", args}}; }
Program import(const std::vector<Json>& nodes, MaskGenerator generator = MaskGenerator::Twister) {
  Json root = {{"name", "test"}, {"nodes", Json::array()}};
  for (const Json& n : nodes) root["nodes"].push_back(n);
  Program imported = import_aten(root.dump(), generator);
  verify(imported.graph);
  return imported;
}
std::string refused(const std::vector<Json>& nodes) {
  try {
    import(nodes);
  } catch (const InternalError& e) { return e.what(); }
  return "nothing";
}
std::vector<double> values(const Program& i, std::vector<reference::Tensor> inputs) {
  reference::Options rounded;
  rounded.precision = reference::Precision::Rounded;
  return reference::evaluate(i.graph, inputs, rounded).at(0).f;
}

const Json kVector = val("f32", {3});

TEST(Import, AnAddition) {
  Program i = import({input("x", kVector), input("y", kVector),
                      call("z", "aten.add.Tensor", {ref("x"), ref("y")}, kVector, {{"alpha", 2}}),
                      output({ref("z"), nullptr})});
  EXPECT_THAT(i.input_names, ElementsAre("x", "y"));
  EXPECT_EQ(i.graph.input_count, 2);
  ASSERT_EQ(i.graph.outputs.size(), 2u);
  EXPECT_EQ(i.graph.outputs[1].value, nullptr);
  EXPECT_THAT(i.graph.origins(i.graph.outputs[0].value), ElementsAre("model.py:41 (aten.add)"));
  EXPECT_THAT(values(i, {{{DType::F32, {3}}, {1, 2, 3}, {}}, {{DType::F32, {3}}, {10, 20, 30}, {}}}),
              ElementsAre(21, 42, 63));
}

TEST(Import, EqualCallsAreOneNode) {
  Program i = import({input("x", kVector), call("a", "aten.exp.default", {ref("x")}, kVector),
                      call("b", "aten.exp.default", {ref("x")}, kVector), output({ref("a"), ref("b")})});
  EXPECT_EQ(i.graph.outputs[0].value, i.graph.outputs[1].value);
}

TEST(Import, HalfTypesAreComputedInF32AndRoundedOnce) {
  const Json half = val("bf16", {3});
  Program i = import({input("x", half), call("y", "aten.gelu.default", {ref("x")}, half), output({ref("y")})});
  int64_t down = 0;
  for (const Node* n : i.graph.live()) {
    if (n->op == Op::Input) continue;
    if (n->dtype() == DType::BF16) ++down;
  }
  EXPECT_EQ(down, 1);
}

TEST(Import, WithoutARowItIsAnExtern) {
  Program i = import({input("x", kVector),
                      call("y", "aten.cdist.default", {ref("x"), {ref("x"), 1.5}}, kVector, {{"p", nullptr}}),
                      call("z", "aten.cdist.default", {ref("x"), {ref("x"), 1.5}}, kVector, {{"p", nullptr}}),
                      output({ref("y"), ref("z")})});
  ASSERT_EQ(i.graph.outputs[0].value->op, Op::Result);
  EXPECT_EQ(i.graph.outputs[0].value, i.graph.outputs[1].value);
  const Node* n = i.graph.outputs[0].value->in(0);
  EXPECT_EQ(n->as<ExternAttr>().target, "aten.cdist.default");
  EXPECT_EQ(Json::parse(n->as<ExternAttr>().arguments),
            Json::parse(R"({"args": [{"$": 0}, [{"$": 0}, 1.5]], "kwargs": {"p": null}})"));
  EXPECT_EQ(n->inputs.size(), 1u);
  EXPECT_EQ(n->as<ExternAttr>().reason, "trainc has no row for it");
  EXPECT_THAT(i.graph.origins(n), ElementsAre("model.py:41 (aten.cdist)"));
}

TEST(Import, AnExternSaysWhichInputsItsResultsMayBeViewsOf) {
  Json y = call("y", "aten.align_to.default", {ref("b"), {ref("a"), ref("b"), ref("c")}}, kVector);
  y["aliases"] = {"c", "b"};
  Program i = import({input("a", kVector), input("b", kVector), input("c", kVector), y, output({ref("y")})});
  // b and c, in the order of the inputs
  EXPECT_THAT(i.graph.outputs[0].value->in(0)->as<ExternAttr>().aliases, ElementsAre(0, 2));
}

TEST(Import, WhatWritesOverAnArgumentBySchemaIsRefused) {
  Json y = call("y", "custom.update.default", {ref("x")}, kVector);
  y["writes"] = true;
  EXPECT_THAT(refused({input("x", kVector), y, output({ref("y")})}), HasSubstr("writes over its argument"));
}

TEST(Import, AsStridedSeesWhatItsTensorHolds) {
  const auto strided = [](Json x, Dims size, Dims stride, Json offset) {
    return std::vector<Json>{
        input("x", val("f32", {12})), call("v", "aten.neg.default", {ref("x")}, std::move(x)),
        call("y", "aten.as_strided.default", {ref("v"), size, stride, offset}, val("f32", size, stride)),
        output({ref("y")})};
  };
  EXPECT_THAT(refused(strided(val("f32", {12}), {2, 3}, {6, 4}, 0)), HasSubstr("reads memory beside its tensor"));
  EXPECT_THAT(refused(strided(val("f32", {12}), {2, 3}, {6, 1}, -1)), HasSubstr("reads memory beside its tensor"));
  EXPECT_EQ(refused(strided(val("f32", {12}), {2, 3}, {6, 1}, 3)), "nothing");
  Json later = val("f32", {12});
  later["offset"] = 5;  // in its storage
  EXPECT_THAT(refused(strided(later, {2, 3}, {6, 1}, 4)), HasSubstr("reads memory beside its tensor"));
  EXPECT_EQ(refused(strided(later, {2, 3}, {6, 1}, 5)), "nothing");
  EXPECT_EQ(refused(strided(later, {2, 3}, {6, 1}, nullptr)), "nothing");
  const auto of_argument = [](Json offset) {
    return std::vector<Json>{input("x", val("f32", {12})),
                             call("y", "aten.as_strided.default", {ref("x"), {3}, {2}, offset}, val("f32", {3}, {2})),
                             output({ref("y")})};
  };
  EXPECT_THAT(refused(of_argument(2)), HasSubstr("where another call may have it elsewhere"));
  EXPECT_EQ(refused(of_argument(nullptr)), "nothing");
}

TEST(Import, AFormThatTheRowDoesNotCoverIsAnExtern) {
  Program i = import({input("x", kVector), call("y", "aten.linalg_vector_norm.default", {ref("x"), 3}, val("f32", {})),
                      output({ref("y")})});
  ASSERT_EQ(i.graph.outputs[0].value->op, Op::Result);
  EXPECT_EQ(i.graph.outputs[0].value->in(0)->as<ExternAttr>().reason, "this form of it has no compiled equivalent");
}

TEST(Import, ResultsOfAnExternThatAreUndefined) {
  Program i =
      import({input("x", kVector), call("y", "aten.several.default", {ref("x")}, {nullptr, kVector, val("i64", {})}),
              call("a", "getitem", {ref("y"), 0}, nullptr), call("b", "getitem", {ref("y"), 1}, kVector),
              call("c", "getitem", {ref("y"), 2}, val("i64", {})), output({ref("a"), ref("b"), ref("c")})});
  EXPECT_EQ(i.graph.outputs[0].value, nullptr);
  EXPECT_EQ(i.graph.outputs[1].value->op, Op::Result);
  EXPECT_EQ(i.graph.outputs[1].value->type, (Type{DType::F32, {3}}));
  EXPECT_EQ(i.graph.outputs[2].value->type, (Type{DType::I64, {}}));
  EXPECT_EQ(i.graph.outputs[1].value->in(0)->as<ExternAttr>().results[0], (Type{DType::Bool, {0}}));
}

TEST(Import, RandomExternsKeepTheirPlaceAmongTheDraws) {
  Json r = call("r", "aten.rand.default", Json::array({Json::array({3})}), kVector), s = r;
  r["random"] = s["random"] = true;
  s["name"] = "s";
  Program i = import({input("x", kVector), r,
                      call("d", "aten.native_dropout.default", {ref("x"), 0.5, true}, {kVector, val("bool", {3})}), s,
                      call("y", "getitem", {ref("d"), 1}, val("bool", {3})), output({ref("r"), ref("s"), ref("y")})});
  EXPECT_EQ(i.graph.outputs[0].value->in(0)->as<ExternAttr>().draw, 0);
  EXPECT_EQ(i.graph.outputs[1].value->in(0)->as<ExternAttr>().draw, 2);
  EXPECT_EQ(i.graph.outputs[2].value->as<RandomAttr>().draw, 1);
  EXPECT_DOUBLE_EQ(i.graph.outputs[2].value->as<RandomAttr>().p, 0.5);
}

TEST(Import, ADropoutMaskIsDrawnInMemoryOrder) {
  const Json x = val("f32", {3, 4}, {1, 3}), m = val("bool", {3, 4}, {1, 3});
  const std::vector<Json> nodes = {input("x", x),
                                   call("d", "aten.native_dropout.default", {ref("x"), 0.5, true}, {x, m}),
                                   call("m", "getitem", {ref("d"), 1}, m), output({ref("m")})};
  const Program twister = import(nodes), mkl = import(nodes, MaskGenerator::Mkl);
  const Node* mask = twister.graph.outputs[0].value;
  ASSERT_EQ(mask->op, Op::Permute);
  EXPECT_EQ(mask->in(0)->type.shape, (Dims{4, 3}));
  EXPECT_EQ(mkl.graph.outputs[0].value->op, Op::Random);  // MKL draws in logical order (docs/frontend.md)
}

TEST(Import, DropoutThatDrawsNothingTakesNoPlace) {
  const Json b = val("bool", {3});
  Program i =
      import({input("x", kVector), call("d", "aten.native_dropout.default", {ref("x"), 1.0, true}, {kVector, b}),
              call("e", "aten.native_dropout.default", {ref("x"), 0.5, true}, {kVector, b}),
              call("m", "getitem", {ref("e"), 1}, b), output({ref("m")})});
  EXPECT_EQ(i.graph.outputs[0].value->as<RandomAttr>().draw, 0);
}

TEST(Import, StridesStandAtTheEnds) {
  Program i = import(
      {input("x", val("f32", {3, 4}, {1, 3})), call("y", "aten.exp.default", {ref("x")}, val("f32", {3, 4}, {1, 3})),
       call("e", "aten.expand.default", {ref("x"), {3, 4}}, val("f32", {3, 4}, {0, 1})),
       call("o", "aten.exp.default", {ref("x")}, val("f32", {3, 4})), output({ref("y"), ref("e"), ref("o")})});
  EXPECT_EQ(i.graph.live()[0]->as<InputAttr>().strides, (Dims{1, 3}));
  EXPECT_EQ(i.graph.outputs[0].strides, (Dims{1, 3}));
  EXPECT_TRUE(i.graph.outputs[1].strides.empty())
      << "elements of an expanded view share their place: a plain tensor instead";
  EXPECT_TRUE(i.graph.outputs[2].strides.empty());
}

TEST(Import, RecomputedValuesAreListed) {
  Json y = call("y", "aten.exp.default", {ref("x")}, kVector);
  y["recompute"] = true;
  Program i = import({input("x", kVector), y, output({ref("y")})});
  EXPECT_THAT(i.must_recompute, ElementsAre(i.graph.outputs[0].value));
}

TEST(Import, ComparisonsPromoteAsPyTorchDoes) {
  struct {
    const char* dtype;
    Json other;
    DType common;
  } cases[] = {{"i64", 0.5, DType::F32},
               {"i64", 2, DType::I64},
               {"bf16", 0.5, DType::F32},
               {"bool", 1, DType::I64},
               {"f64", 1, DType::F64}};
  for (const auto& c : cases) {
    Program i = import({input("x", val(c.dtype, {2})),
                        call("y", "aten.lt.Scalar", {ref("x"), c.other}, val("bool", {2})), output({ref("y")})});
    EXPECT_EQ(i.graph.outputs[0].value->in(0)->dtype(), c.common) << c.dtype << " < " << c.other;
  }
}

TEST(Import, Refusals) {
  auto one = [](const char* target, Json args, Json v) {
    return refused(
        {input("x", val("f32", {3, 4}, {1, 3})), call("y", target, std::move(args), std::move(v)), output({ref("y")})});
  };
  EXPECT_THAT(one("aten.exp.default", {ref("x")}, val("complex64", {3, 4})),
              HasSubstr("model.py:41 (aten.exp): dtype complex64 is not compiled"));
  EXPECT_THAT(one("aten.exp.default", {ref("x")}, val("f32", {4, 4})),
              HasSubstr("model.py:41 (aten.exp): aten.exp.default: broadcast"));
  EXPECT_THAT(one("aten.cat.default", {Json::array({ref("x")}), 1}, val("f32", {3, 5})),
              HasSubstr("result 0 is f32[3,4], not f32[3,5]"));
  EXPECT_THAT(one("aten.split.Tensor", {ref("x"), 9}, Json::array({val("f32", {9, 4})})),
              HasSubstr("model.py:41 (aten.split)"));
  EXPECT_THAT(one("aten.select.int", {ref("x"), 1, 4}, val("f32", {3})), HasSubstr("index 4 of size 4"));
  EXPECT_THAT(one("aten.sum.dim_IntList", {ref("x"), {2}}, val("f32", {3})), HasSubstr("axis 2 of rank 2"));
}

TEST(Import, RefusalsOfWhatTheFrameworkCannotDoEither) {
  const Json x = input("x", val("f32", {3, 4}, {1, 3}));
  EXPECT_THAT(refused({x, call("y", "aten.foo_.default", {ref("x")}, val("f32", {3, 4})), output({ref("y")})}),
              HasSubstr("writes over its argument"));
  const Json gaps = input("x", val("f32", {3, 4}, {1, 6}));
  EXPECT_THAT(
      refused({gaps, call("y", "aten.as_strided.default", {ref("x"), {2}, {1}}, val("f32", {2})), output({ref("y")})}),
      HasSubstr("reads the memory of a tensor that has gaps"));
  Json r = call("y", "aten.rand_like.default", {ref("x")}, val("f32", {3, 4}, {1, 3}));
  r["random"] = true;
  EXPECT_THAT(refused({x, r, output({ref("y")})}), HasSubstr("draws in an order that is not row-major"));
  EXPECT_THAT(refused({x, call("y", "aten.item.default", {ref("x")}, nullptr), output({nullptr})}),
              HasSubstr("gives no tensor"));
  EXPECT_THAT(refused({x, call("y", "aten.exp.default", {ref("nobody")}, kVector), output({ref("y")})}),
              HasSubstr("nobody"));
  EXPECT_THAT(refused({x, output({ref("nobody")})}), HasSubstr("nobody"));
  EXPECT_THAT(refused({{{"op", "call"}, {"name", "y"}}}), HasSubstr("wire format is violated"));
}

TEST(Import, AnEffectWithoutAResultKeepsItsPlaceAmongTheDraws) {
  const Json x = input("x", val("f32", {3, 4}));
  Json drawn = call("r", "aten.rand_like.default", {ref("x")}, val("f32", {3, 4}));
  drawn["random"] = true;
  Json check = call("c", "aten._assert_async.msg", {ref("x"), "positive"}, nullptr);
  check["effect"] = true;
  const Program program = import({x, drawn, check, output({ref("x")})});
  ASSERT_EQ(program.graph.effects.size(), 2);
  EXPECT_EQ(program.graph.effects[1]->as<ExternAttr>().target, "aten._assert_async.msg");
  EXPECT_EQ(program.graph.effects[1]->as<ExternAttr>().draw, 1);
}

TEST(Import, WhatTheFrameworkIsToRunHasNoPrimitives) {
  Json pairs = call("c", "aten.mul.Tensor", {ref("x"), ref("x")}, val("f32", {3, 2}));
  pairs["framework"] = true;
  const Program program = import({input("x", val("f32", {3, 2})), pairs, output({ref("c")})});
  EXPECT_EQ(program.graph.outputs[0].value->op, Op::Result);
}

TEST(Import, TextsThatAreNoGraph) {
  for (const char* text : {"", "{", "[]", "{\"nodes\": 3}", "{\"nodes\": [{\"op\": \"what\"}]}"})
    EXPECT_THROW(import_aten(text), InternalError) << text;
}

TEST(Import, TheTableHasNamesOfOverloads) {
  const auto names = supported_operations();
  EXPECT_GT(names.size(), 200u);
  for (const std::string& name : names) EXPECT_EQ(std::count(name.begin(), name.end(), '.'), 2) << name;
}

}  // namespace
}  // namespace trainc::frontend
