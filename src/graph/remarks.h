// Remarks on the nodes of a graph.
#pragma once
#include <initializer_list>
#include <string>

#include "graph/graph.h"
#include "support/remark.h"

namespace trainc {

/// Where code that decides about nodes of `graph` says what it refused; to nobody where `to` is null.
class NodeRemarks {
 public:
  NodeRemarks(const Graph& graph, const char* stage, Remarks* to) : graph_(graph), stage_(stage), to_(to) {}
  /// Whether somebody listens.
  explicit operator bool() const { return to_; }
  /// `what` (one of `missed`) was not done for `node` (together with `other`, where there is one).
  void missed(const char* what, const char* reason, const Node* node, const Node* other, int64_t bytes,
              std::string_view detail = {}) const {
    if (to_) to_->add(stage_, what, reason, detail, line(node), other ? line(other) : std::string_view(), bytes);
  }

 private:
  /// The line of the program that a node is of; of one that the compiler made itself, the line of what it was made
  /// from.
  std::string_view line(const Node*) const;

  const Graph& graph_;
  const char* const stage_;
  Remarks* const to_;
};

}  // namespace trainc
