#include "frontend/aten/table.h"

namespace trainc::frontend::aten {

const Table& table() {
  static const Table t = [] {
    Table t;
    add_elementwise(t);
    add_activations(t);
    add_reductions(t);
    add_views(t);
    add_strided(t);
    add_creation(t);
    add_contractions(t);
    add_convolutions(t);
    add_softmax(t);
    add_normalization(t);
    add_losses(t);
    add_attention(t);
    add_indexing(t);
    add_random(t);
    add_pooling(t);
    return t;
  }();
  return t;
}

}  // namespace trainc::frontend::aten
