// What a blob may not need, and what good code for a register tile looks like.
#include <elf.h>

#include <gmock/gmock.h>

#include <functional>
#include <regex>
#include <set>

#include "emit/llvm/link.h"
#include "emit/llvm/object.h"
#include "harness.h"

namespace trainc::emit::test {
namespace {

using namespace loop;

LoopNest with_constants() {
  LoopNest nest;
  nest.name = "with_constants";
  const int a = nest.add_buffer({"a", DType::F32, 64}),
            out = nest.add_buffer({"out", DType::F32, 64, Space::Argument, true});
  const int i = nest.add_var("i", 64);
  nest.body = for_loop(LoopKind::Vector, i, integer(64),
                       store(out, nest.var(i), apply(Op::Sin, {nest.load(a, nest.var(i))})), 16);
  return nest;
}

// Calls f on every symbol of the object, or every relocation of its code.
template <class T> void each(std::string& object, uint32_t section_type, const std::function<void(T&)>& f) {
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(object.data());
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(object.data() + header->e_shoff);
  for (int s = 0; s < header->e_shnum; ++s) {
    if (sections[s].sh_type != section_type) continue;
    for (uint64_t at = 0; at < sections[s].sh_size; at += sizeof(T))
      f(*reinterpret_cast<T*>(object.data() + sections[s].sh_offset + at));
  }
}

std::string refusal(const std::string& object) {
  try {
    link(object, "with_constants");
  } catch (const InternalError& e) { return e.what(); }
  return "";
}

TEST(Link, ResolvesConstantsOfEveryLevel) {
  for (CpuLevel level : all_levels()) {
    const std::string o = object(with_constants(), level);
    EXPECT_EQ(refusal(o), "");
    EXPECT_GT(link(o, "with_constants").code.size(), 2048u);  // the table of 2/pi came along
  }
}

TEST(Link, RefusesASymbolFromOutside) {
  std::string o = object(with_constants(), CpuLevel::Avx2);
  each<Elf64_Sym>(o, SHT_SYMTAB, [](Elf64_Sym& s) {
    if (ELF64_ST_TYPE(s.st_info) != STT_FUNC) s.st_shndx = SHN_UNDEF;
  });
  EXPECT_THAT(refusal(o), ::testing::HasSubstr("which is not in the kernel"));
  EXPECT_THAT(refusal(o), ::testing::HasSubstr("with_constants refers to "));
}

TEST(Link, RefusesAbsoluteAddresses) {
  std::string o = object(with_constants(), CpuLevel::Avx2);
  each<Elf64_Rela>(o, SHT_RELA, [](Elf64_Rela& r) { r.r_info = ELF64_R_INFO(ELF64_R_SYM(r.r_info), R_X86_64_64); });
  EXPECT_THAT(refusal(o), ::testing::HasSubstr("only PC-relative"));
}

TEST(Link, RefusesDamagedObjects) {
  const std::string o = object(with_constants(), CpuLevel::Avx2);
  EXPECT_NE(refusal(o.substr(0, o.size() / 2)), "");
  EXPECT_NE(refusal("nonsense"), "");
  EXPECT_THROW(link(o, "another"), InternalError);
}

// 12 x 32 of C in registers, k serial: the loop that everything else is for.
LoopNest micro_kernel() {
  LoopNest nest;
  nest.name = "micro_kernel";
  const int64_t depth = 256;
  const int a = nest.add_buffer({"a", DType::F32, depth * 12}), b = nest.add_buffer({"b", DType::F32, depth * 32});
  const int c = nest.add_buffer({"c", DType::F32, 12 * 32, Space::Argument, true}),
            tile = nest.add_buffer({"tile", DType::F32, 12 * 32, Space::Register, true});
  const auto over_tile = [&](const std::function<Stmt(Expr i, Expr j)>& body) {
    const int i = nest.add_var("i", 12), v = nest.add_var("v", 2), lane = nest.add_var("lane", 16);
    const Expr j = nest.var(v) * 16 + nest.var(lane);
    return for_loop(LoopKind::Unroll, i, integer(12),
                    for_loop(LoopKind::Unroll, v, integer(2),
                             for_loop(LoopKind::Vector, lane, integer(16), body(nest.var(i), j), 16)));
  };
  const int k = nest.add_var("k", depth);
  nest.body = block({
      over_tile([&](Expr i, Expr j) { return store(tile, i * 32 + j, real(0, DType::F32)); }),
      for_loop(LoopKind::Serial, k, integer(depth), over_tile([&](Expr i, Expr j) {
                 return store(tile, i * 32 + j,
                              fma(nest.load(a, nest.var(k) * 12 + i), nest.load(b, nest.var(k) * 32 + j),
                                  nest.load(tile, i * 32 + j)));
               })),
      over_tile([&](Expr i, Expr j) { return store(c, i * 32 + j, nest.load(tile, i * 32 + j)); }),
  });
  return nest;
}

TEST(MicroKernel, KeepsTheTileInRegisters) {
  const std::string text = assembly(micro_kernel(), CpuLevel::Avx512);
  const std::regex multiply("vfmadd[0-9]+ps[^\n]*%zmm([0-9]+)\n");
  std::set<std::string> accumulators;
  int count = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), multiply), end; it != end; ++it, ++count)
    accumulators.insert((*it)[1]);
  EXPECT_EQ(count, 24) << text;
  EXPECT_EQ(accumulators.size(), 24u) << text;
  EXPECT_EQ(text.find("rsp"), std::string::npos) << "spills:\n" << text;
  EXPECT_EQ(text.find("rbp"), std::string::npos) << "a frame:\n" << text;
  expect_as_interpreted(micro_kernel(),
                        {interpret::memory_of(random_floats(256 * 12)), interpret::memory_of(random_floats(256 * 32)),
                         interpret::output_of(12 * 32 * 4)});
}

TEST(Optimise, NothingIsContracted) {
  LoopNest nest;
  nest.name = "separate";
  const int a = nest.add_buffer({"a", DType::F32, 64}),
            out = nest.add_buffer({"out", DType::F32, 64, Space::Argument, true});
  const int i = nest.add_var("i", 64);
  const Expr x = nest.load(a, nest.var(i));
  nest.body = for_loop(LoopKind::Vector, i, integer(64),
                       store(out, nest.var(i), apply(Op::Add, {apply(Op::Mul, {x, x}), x})), 16);
  for (CpuLevel level : all_levels()) EXPECT_EQ(assembly(nest, level).find("vfmadd"), std::string::npos);
}

TEST(Optimise, CopiesAndFillsCallNothing) {
  LoopNest nest;
  nest.name = "copy_and_fill";
  const int64_t n = 4096;
  const int a = nest.add_buffer({"a", DType::U8, n}), b = nest.add_buffer({"b", DType::U8, n, Space::Argument, true});
  const int c = nest.add_buffer({"c", DType::F64, n, Space::Argument, true});
  const int i = nest.add_var("i", n), j = nest.add_var("j", n);
  nest.body = block({for_loop(LoopKind::Serial, i, integer(n), store(b, nest.var(i), nest.load(a, nest.var(i)))),
                     for_loop(LoopKind::Serial, j, integer(n), store(c, nest.var(j), real(0, DType::F64)))});
  for (CpuLevel level : all_levels()) EXPECT_EQ(assembly(nest, level).find("call"), std::string::npos);
}

}  // namespace
// The chain from term to term: comparisons, an `or` of them and a blend would take twice as long.
TEST(Optimise, TheGreatestOfARowWaitsForOneInstruction) {
  LoopNest nest;
  nest.name = "greatest";
  const int a = nest.add_buffer({"a", DType::F32, 4096}),
            out = nest.add_buffer({"out", DType::F32, 1, Space::Argument, true});
  const int i = nest.add_var("i", 4096), most = nest.add_local("most", DType::F32);
  nest.body =
      block({let(most, real(-1, DType::F32)),
             for_loop(LoopKind::Vector, i, integer(4096), reduce(most, ReduceKind::Max, nest.load(a, nest.var(i))), 16),
             store(out, integer(0), nest.local(most))});
  const std::string text = assembly(nest, CpuLevel::Avx512);
  EXPECT_NE(text.find("vmaxps"), std::string::npos) << text;
  EXPECT_EQ(text.find("kor"), std::string::npos) << text;
}

}  // namespace trainc::emit::test
