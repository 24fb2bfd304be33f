#include "graph/graph.h"

#include <bit>

#include "graph/verify.h"

namespace trainc {

std::string to_string(const Type& type) {
  std::string text(name_of(type.dtype));
  text += '[';
  for (size_t i = 0; i < type.shape.size(); ++i) text += (i ? "," : "") + std::to_string(type.shape[i]);
  return text + ']';
}

std::string_view name_of(Op op) {
  switch (op) {
#define OP(Name, text, inputs, Class, meaning) \
  case Op::Name: return text;
#include "graph/ops.def"
  }
  return "?";
}

OpClass class_of(Op op) {
  switch (op) {
#define OP(Name, text, inputs, Class, meaning) \
  case Op::Name: return OpClass::Class;
#include "graph/ops.def"
  }
  return OpClass::Leaf;
}

int arity_of(Op op) {
  switch (op) {
#define OP(Name, text, inputs, Class, meaning) \
  case Op::Name: return inputs;
#include "graph/ops.def"
  }
  return 0;
}

namespace {

struct Hasher {
  size_t state = 0xcbf29ce484222325u;
  void add(uint64_t value) {
    state ^= value + 0x9e3779b97f4a7c15u + (state << 6) + (state >> 2);
    state *= 0x100000001b3u;
  }
  void add(const Dims& dims) {
    add(dims.size());
    for (int64_t d : dims) add(static_cast<uint64_t>(d));
  }
  void add(const Type& type) {
    add(static_cast<uint64_t>(type.dtype));
    add(type.shape);
  }

  void operator()(const NoAttr&) {}
  void operator()(const InputAttr& a) {
    add(a.index);
    add(a.strides);
    add(static_cast<uint64_t>(a.late));
  }
  void operator()(const ConstantAttr& a) { add(a.bits); }
  void operator()(const RandomAttr& a) {
    add(a.draw);
    add(std::bit_cast<uint64_t>(a.p));
    add(a.threads);
    add(a.vector);
  }
  void operator()(const ReduceAttr& a) {
    add(static_cast<uint64_t>(a.kind));
    add(a.axes);
  }
  void operator()(const AxisAttr& a) {
    add(a.axis);
    add(static_cast<uint64_t>(a.failure));
  }
  void operator()(const AxesAttr& a) { add(a.axes); }
  void operator()(const SliceAttr& a) {
    add(a.start);
    add(a.step);
  }
  void operator()(const PadAttr& a) {
    add(a.low);
    add(a.high);
  }
  void operator()(const WindowAttr& a) {
    add(a.axes);
    add(a.size);
    add(a.step);
    add(a.dilation);
  }
  void operator()(const ScatterAttr& a) {
    add(a.axis);
    add(static_cast<uint64_t>(a.kind));
    add(static_cast<uint64_t>(a.failure));
  }
  void operator()(const ExternAttr& a) {
    add(std::hash<std::string>()(a.target));
    add(std::hash<std::string>()(a.arguments));
    add(a.draw);
    add(a.aliases);
    add(std::hash<std::string>()(a.reason));
  }
  void operator()(const ResultAttr& a) { add(a.index); }
};

}  // namespace

size_t Graph::Hash::operator()(const Node* node) const {
  Hasher hash;
  hash.add(static_cast<uint64_t>(node->op));
  std::visit(hash, node->attrs);
  for (const Node* in : node->inputs) hash.add(static_cast<uint64_t>(in->id));
  hash.add(node->type);
  return hash.state;
}

bool Graph::Same::operator()(const Node* a, const Node* b) const {
  return a->op == b->op && a->inputs == b->inputs && a->type == b->type && a->attrs == b->attrs;
}

const Node* Graph::make(Op op, Attrs attrs, std::vector<const Node*> inputs, Type type, std::string_view origin) {
  for (const Node* in : inputs)
    require(in && in->id < static_cast<int64_t>(nodes_.size()) && &nodes_[in->id] == in,
            std::string(name_of(op)) + ": an input is no node of this graph");
  Node node{op, std::move(attrs), std::move(inputs), std::move(type), static_cast<int64_t>(nodes_.size())};
  const Node* made;
  if (const auto found = unique_.find(&node); found != unique_.end()) {
    made = found->second;
  } else {
    verify(node);
    nodes_.push_back(std::move(node));
    made = &nodes_.back();
    unique_.emplace(made, made);
  }
  add_origin(made, origin);
  return made;
}

const std::vector<std::string>& Graph::origins(const Node* node) const {
  static const std::vector<std::string> none;
  const auto found = origins_.find(node);
  return found == origins_.end() ? none : found->second;
}

void Graph::add_origin(const Node* node, std::string_view origin) {
  if (origin.empty()) return;
  std::vector<std::string>& all = origins_[node];
  for (const std::string& known : all)
    if (known == origin) return;
  all.emplace_back(origin);
}

std::vector<const Node*> Graph::live() const {
  std::vector<bool> needed(nodes_.size());
  for (const Output& output : outputs)
    if (output.value) needed[output.value->id] = true;
  for (const Node* effect : effects) needed[effect->id] = true;
  for (const Node* n : also_wanted) needed[n->id] = true;
  for (size_t i = nodes_.size(); i-- > 0;)  // users come after their inputs
    if (needed[i])
      for (const Node* in : nodes_[i].inputs) needed[in->id] = true;
  std::vector<const Node*> nodes;
  for (const Node& node : nodes_)
    if (needed[node.id]) nodes.push_back(&node);
  return nodes;
}

bool draws(const Node* n) { return n->op == Op::Random || (n->op == Op::Extern && n->as<ExternAttr>().random); }

int64_t draw_of(const Node* n) { return n->op == Op::Random ? n->as<RandomAttr>().draw : n->as<ExternAttr>().draw; }

Dims contiguous_strides(const Dims& shape) {
  Dims strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

double float_of(const Node* constant) {
  require(constant->op == Op::Constant && is_float(constant->dtype()), "float_of: not a float constant");
  return std::bit_cast<double>(constant->as<ConstantAttr>().bits);
}

int64_t int_of(const Node* constant) {
  require(constant->op == Op::Constant && !is_float(constant->dtype()), "int_of: not an integer constant");
  return static_cast<int64_t>(constant->as<ConstantAttr>().bits);
}

}  // namespace trainc
