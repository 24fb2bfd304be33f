// The words of a nest's text: one table each, read by print.cpp and parse.cpp.
#pragma once
#include <array>
#include <string_view>

#include "loop/loop.h"

namespace trainc::loop::text {

// Infix operators, by how tightly they bind. `a < b < c` is not a sentence; the others group to the left.
struct Infix {
  std::string_view sign;
  Op op;
  int level;
};
inline constexpr int kComparison = 3;
inline constexpr std::array kInfix = {Infix{"|", Op::Or, 1},
                                      Infix{"&", Op::And, 2},
                                      Infix{"<=", Op::Le, kComparison},
                                      Infix{"==", Op::Eq, kComparison},
                                      Infix{"!=", Op::Ne, kComparison},
                                      Infix{"<", Op::Lt, kComparison},
                                      Infix{"+", Op::Add, 4},
                                      Infix{"-", Op::Sub, 4},
                                      Infix{"*", Op::Mul, 5},
                                      Infix{"//", Op::FloorDiv, 5},
                                      Infix{"/", Op::Div, 5},
                                      Infix{"%", Op::Mod, 5}};

struct LoopWord {
  std::string_view word;
  LoopKind kind;
};
inline constexpr std::array kLoops = {LoopWord{"for", LoopKind::Serial}, LoopWord{"parallel", LoopKind::Parallel},
                                      LoopWord{"vector", LoopKind::Vector}, LoopWord{"unroll", LoopKind::Unroll},
                                      LoopWord{"thread", LoopKind::Thread}};

struct SpaceWord {
  std::string_view word;
  Space space;
};
inline constexpr std::array kSpaces = {SpaceWord{"argument", Space::Argument}, SpaceWord{"scratch", Space::Scratch},
                                       SpaceWord{"register", Space::Register}, SpaceWord{"shared", Space::Shared},
                                       SpaceWord{"tile", Space::Tile}};

struct CombineWord {
  std::string_view word;
  ReduceKind kind;
};
inline constexpr std::array kCombines = {CombineWord{"sum", ReduceKind::Sum}, CombineWord{"prod", ReduceKind::Prod},
                                         CombineWord{"max", ReduceKind::Max}, CombineWord{"min", ReduceKind::Min}};

// Words that no variable, local or buffer may be called; names of ops, dtypes and combines come on top.
inline constexpr std::array<std::string_view, 48> kWords = {
    "for",     "parallel",   "vector",     "unroll",    "in",       "atmost",   "if",        "let",
    "store",   "check",      "prefetch",   "transpose", "by",       "block",    "pass",      "true",
    "false",   "inf",        "nan",        "fma",       "pair",     "dot",      "cast",      "argument",
    "scratch", "register",   "bits",       "written",   "over",     "body",     "kernel",    "thread",
    "threads", "shared",     "barrier",    "warp",      "mma",      "copy",     "copyasync", "commit",
    "wait",    "loadmatrix", "transposed", "tile",      "tilezero", "tileload", "tiledot",   "tilestore"};

/// Whether `word` means something in the text.
bool is_reserved(std::string_view word);

}  // namespace trainc::loop::text
