// What verify refuses, by its words; each nest differs from a sound one in the one thing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loop/loop.h"

namespace trainc::loop {
namespace {

constexpr const char* kHead = R"(kernel k
  parallel 4
  argument x: f32[64]
  argument h: bf16[64]
  argument out: f32[64] written
  scratch s: f32[16] written
  register r: f32[32] written
  tile t: f32[256] written
  tile p: i32[256] written
body:
)";

LoopNest sound(const std::string& body) { return parse(kHead + body); }

void refused(const LoopNest& nest, const std::string& words) {
  try {
    verify(nest);
    ADD_FAILURE() << "accepted, not refused with: " << words << "\n" << print(nest);
  } catch (const InternalError& e) { EXPECT_THAT(e.what(), testing::HasSubstr(words)); }
}
void refused(const std::string& body, const std::string& words) { refused(sound(body), words); }

constexpr const char* kSound = R"(  parallel i in 4:
    let acc: f32 = 0.0
    vector(16) j in 16:
      let v: f32 = x[i * 16 + j] + cast<f32>(h[j])
      let inner: f32 = 0.0
      for k in 3:
        inner = sum(inner, v)
      acc = sum(acc, inner)
    unroll u in 2:
      vector(16) l in 16:
        store r[u * 16 + l] = acc
    store out[i] = acc
)";

TEST(LoopVerify, AcceptsASoundNest) { EXPECT_NO_THROW(verify(sound(kSound))); }

TEST(LoopVerify, BitsAreArgumentsThatADeviceAloneWrites) {
  LoopNest nest;
  nest.name = "n";
  const int mask = nest.add_buffer({"mask", DType::Bool, 64, Space::Argument, false, -1, true});
  nest.body = block({});
  EXPECT_NO_THROW(verify(nest));
  const auto changed = [&](auto change) {
    LoopNest other = nest;
    change(other.buffers[static_cast<size_t>(mask)]);
    return other;
  };
  const char* words = "of bits is no bool, no argument, or written by a CPU";
  refused(changed([](Buffer& b) { b.dtype = DType::U8; }), words);
  refused(changed([](Buffer& b) { b.written = true; }), words);
  refused(changed([](Buffer& b) { b.space = Space::Scratch, b.written = true; }), words);
  LoopNest device = nest;
  device.threads = 128;
  EXPECT_NO_THROW(verify(device));
  device.buffers[static_cast<size_t>(mask)].written = true;
  const int kept = device.add_buffer({"kept", DType::Bool, 16, Space::Register, true});
  const int thread = device.add_var("thread", 2);
  const auto each = [&](Stmt body) {
    LoopNest other = device;
    other.body = for_loop(LoopKind::Thread, thread, integer(2), block({std::move(body)}));
    return other;
  };
  EXPECT_NO_THROW(verify(each(copy(mask, device.var(thread) * 8, kept, integer(0), 8))));
  EXPECT_NO_THROW(verify(each(copy(kept, integer(0), mask, device.var(thread) * 4, 4))));
  refused(each(copy(mask, device.var(thread) * 4, kept, integer(0), 4)),
          "a copy of 4 bits to mask: a thread writes bytes");
  refused(each(copy(kept, integer(0), mask, device.var(thread) * 16, 16)), "a copy of 16 bits from mask");
  refused(each(store(mask, device.var(thread), integer(1, DType::Bool))), "store to mask, which is bits");
}

TEST(LoopVerify, RefusesByItsWords) {
  refused("  parallel i in 4:\n    for j in 4:\n      parallel m in 4:\n        pass\n", "more than one Parallel loop");
  refused("  for j in 4:\n    parallel m in 4:\n      pass\n", "a Parallel loop inside another loop (in j > m)");
  refused("  parallel m in 5:\n    pass\n", "the Parallel loop's extent is not parallel_extent, 4");
  refused("  pass\n", "parallel_extent without a Parallel loop");
  refused("  store out[0] = 1.0\n  parallel i in 4:\n    pass\n", "store to argument out beside the Parallel loop");
  refused("  parallel i in 4:\n    store x[i] = 1.0\n", "store to x, which is not marked as written");
  refused("  parallel i in 4:\n    store out[i] = h[i]\n", "store of bf16 to out, which is f32");
  refused("  parallel i in 4:\n    store out[i] = cast<f32>(h[i] + h[i])\n", "add in bf16: cast to f32 first");
  refused("  parallel i in 4:\n    store out[i + 64] = 1.0\n", "an index of out is within [64, 67], its size is 64");
  refused("  parallel i in 4:\n    store out[i] = x[i - 9]\n", "an index of x is within [-9, -6]");
  refused("  parallel i in 4:\n    store r[i] = 1.0\n",
          "Register buffer r depends on more than Unroll and Vector variables");
  refused("  parallel i in 4:\n    vector(8) j in i:\n      store r[j] = 1.0\n",
          "Register buffer r in a Vector loop whose extent is no number");
  refused("  parallel i in 4:\n    unroll u in i:\n      pass\n", "an Unroll loop whose extent is no number");
  refused("  parallel i in 4:\n    vector(20) j in 16:\n      pass\n", "a Vector loop of 20 lanes");
  refused("  parallel i in 4:\n    let a: f32 = 0.0\n    vector(12) j in 16:\n      a = sum(a, x[j])\n",
          "a Vector loop of 12 lanes");
  refused("  parallel i in 4:\n    vector(8) j in 16:\n      vector(8) k in 16:\n        pass\n",
          "a Vector loop inside a Vector loop");
  refused("  parallel i in 4:\n    vector(8) j in 16:\n      for k in j:\n        pass\n",
          "the extent of k differs between the lanes");
  refused("  parallel i in 4:\n    for j in 16 atmost 8:\n      pass\n",
          "the extent of j is 16; its variable promises at most 8");
  refused("  parallel i in 4:\n    check(0) i < 3\n", "a Check with code 0");
  refused("  parallel i in 4:\n    transpose(3) out[i by 8] = x[i by 8]\n", "a transpose of 3 lanes");
  refused("  parallel i in 4:\n    transpose(4) out[i by 8] = h[i by 8]\n", "a transpose from bf16 to f32");
  refused("  parallel i in 4:\n    transpose(4) x[i by 8] = out[i by 8]\n",
          "transpose to x, which is not marked as written");
  refused("  parallel i in 4:\n    transpose(4) out[i by 8] = out[i by 8]\n", "a transpose of out into itself");
  refused("  parallel i in 4:\n    vector(8) j in 16:\n      transpose(4) out[i by 8] = x[i by 8]\n",
          "a transpose to out inside a Vector loop");
  refused("  parallel i in 4:\n    prefetch(3) x[i]\n", "a prefetch of x to cache level 3; 1 and 2 are there");
  refused("  parallel i in 4:\n    vector(8) j in 16:\n      prefetch(1) x[j]\n",
          "a prefetch of x inside a Vector loop");
  refused("  parallel i in 4:\n    store out[i] = t[i]\n", "an element of Tile buffer t");
  refused("  parallel i in 4:\n    tileload r = x[i by 16]\n", "r is no Tile buffer");
  refused("  parallel i in 4:\n    tileload p = x[i by 16]\n", "a tile load from f32 to i32");
  refused("  parallel i in 4:\n    tilestore out[i by 16] = p\n", "a tile store from i32 to f32");
  refused("  parallel i in 4:\n    tilestore x[i by 16] = t\n", "tile store to x, which is not marked as written");
  refused("  tilestore out[0 by 16] = t\n  parallel i in 4:\n    pass\n",
          "tile store to argument out beside the Parallel loop");
  refused("  parallel i in 4:\n    tiledot t += p * t\n", "a tile dot that is not f32 += i32 * i32");
  refused("  parallel i in 4:\n    vector(8) j in 16:\n      tilezero t\n", "tile t inside a Vector loop");
  LoopNest nest = sound("  parallel i in 4:\n    pass\n");
  nest.buffers[size_t(nest.buffers.size() - 1)].numel = 16;
  refused(nest, "Tile buffer p in a nest for a device, or not 256 elements");
  nest = sound("  parallel i in 4:\n    pass\n");
  for (int i = 0; i < 7; ++i) nest.add_buffer({"more", DType::F32, 256, Space::Tile, true});
  refused(nest, "9 Tile buffers; there are 8 registers");
}

TEST(LoopVerify, RefusesReductionsThatMeanNothing) {
  refused("  let a: f32 = 0.0\n  parallel i in 4:\n    a = sum(a, x[i])\n",
          "local a is reduced over the Parallel loop");
  refused(
      "  parallel i in 4:\n    let a: f32 = 0.0\n    vector(8) j in 16:\n      store out[j] = a\n      a = sum(a, "
      "x[j])\n",
      "local a is read in the Vector loop that reduces into it");
  refused("  parallel i in 4:\n    let a: f64 = 0.0:f64\n    vector(8) j in 16:\n      a = max(a, x[j])\n",
          "a is f64, reduced with f32");
  refused("  parallel i in 4:\n    let a: bf16 = 0.0:bf16\n    vector(8) j in 16:\n      a = sum(a, h[j])\n",
          "a is bf16");
}

TEST(LoopVerify, RefusesLocalsAndVariablesOutOfScope) {
  refused("  parallel i in 4:\n    block:\n      let a: f32 = 0.0\n    store out[i] = a\n",
          "local a is used where it is not bound (in i)");
  refused("  parallel i in 4:\n    for j in 2:\n      let a: f32 = 0.0\n    a = sum(a, 1.0)\n",
          "local a is reduced into where it is not bound");
  refused("  parallel i in 4:\n    let a: f32 = 0.0\n    let a: f32 = 1.0\n", "local a is bound twice");
  refused("  parallel i in 4:\n    for j in 2:\n      pass\n    store out[j] = 1.0\n", "variable j outside its loop");
  refused("  parallel i in 4:\n    for i in 2:\n      pass\n", "two loops over i");
  refused("  parallel i in 4:\n    let a: i64 = 1.0\n", "let a: i64 = a value of f32");
}

TEST(LoopVerify, RefusesWrongTables) {
  LoopNest n = sound(kSound);
  n.add_buffer({"late", DType::F32, 4, Space::Argument, false});
  refused(n, "argument late after a buffer that is none");

  n = sound(kSound);
  n.add_buffer({"own", DType::F32, 4, Space::Scratch, false});
  refused(n, "buffer own is the kernel's own, and not marked as written");

  n = sound(kSound);
  n.add_buffer({"huge", DType::F32, 1 << 20, Space::Register, true});
  refused(n, "bytes of Register buffers");

  n = sound(kSound);
  n.vars[1].extent = 99;
  refused(n, "variable j has another extent than the nest's");

  n = sound(kSound);
  n.body = nullptr;
  refused(n, "no body");
}

}  // namespace
}  // namespace trainc::loop
