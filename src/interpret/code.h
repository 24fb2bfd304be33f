// Expressions, flattened once: their nodes in order, operands before what uses them. Inside interpret only.
#pragma once
#include <array>
#include <unordered_map>
#include <vector>

#include "loop/loop.h"

namespace trainc::interpret {

struct Instruction {
  const loop::ExprNode* node;
  std::array<int, 3> operands{};  // places in the code
};
using Code = std::vector<Instruction>;

class CodeCache {
 public:
  const Code& of(const loop::Expr& e) {
    const auto [at, made] = codes_.try_emplace(e.get());
    if (made) {
      std::unordered_map<const loop::ExprNode*, int> places;
      flatten(*e, at->second, places);
    }
    return at->second;
  }

 private:
  static int flatten(const loop::ExprNode& e, Code& code, std::unordered_map<const loop::ExprNode*, int>& places) {
    if (const auto at = places.find(&e); at != places.end()) return at->second;
    Instruction in{&e};
    for (size_t i = 0; i < e.args.size(); ++i) in.operands.at(i) = flatten(*e.args[i], code, places);
    code.push_back(in);
    return places[&e] = static_cast<int>(code.size()) - 1;
  }
  std::unordered_map<const loop::ExprNode*, Code> codes_;
};

}  // namespace trainc::interpret
