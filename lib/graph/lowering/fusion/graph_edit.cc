#include "lib/graph/lowering/fusion/graph_edit.h"

#include <algorithm>
#include <utility>

#include "google/protobuf/repeated_field.h"

namespace muster {

GraphEdit::GraphEdit(v1::Graph& graph)
    : graph_(graph), roles_(graph.gradients().begin(), graph.gradients().end()) {
  roles_.insert({graph.loss(), graph.logits(), graph.correct()});
  for (int i = 0; i < graph.nodes_size(); ++i) Link(i);
}

GraphEdit::~GraphEdit() {
  if (removed_.empty()) return;
  google::protobuf::RepeatedPtrField<v1::Node> nodes;
  for (int i = 0; i < graph_.nodes_size(); ++i) {
    if (!removed_.contains(i)) nodes.Add(std::move(*graph_.mutable_nodes(i)));
  }
  graph_.mutable_nodes()->Swap(&nodes);
}

int GraphEdit::Maker(const std::string& tensor) const {
  auto maker = makers_.find(tensor);
  return maker == makers_.end() ? -1 : maker->second;
}

absl::Span<const int> GraphEdit::Readers(const std::string& tensor) const {
  auto readers = readers_.find(tensor);
  if (readers == readers_.end()) return {};
  return readers->second;
}

int GraphEdit::OnlyReader(const std::string& tensor) const {
  const absl::Span<const int> readers = Readers(tensor);
  return readers.size() == 1 && !roles_.contains(tensor) ? readers.front() : -1;
}

bool GraphEdit::IsReadBy(const std::string& tensor, absl::Span<const int> nodes) const {
  return Readers(tensor) == nodes && !roles_.contains(tensor);
}

int GraphEdit::FirstReader(const std::string& tensor, absl::string_view op) const {
  const absl::Span<const int> readers = Readers(tensor);
  const auto reader = std::ranges::find_if(readers, [&](int i) { return Is(i, op); });
  return reader == readers.end() ? -1 : *reader;
}

bool GraphEdit::Replace(absl::Span<const int> members, v1::Node fused) {
  int last_maker = -1;
  for (const std::string& input : fused.inputs()) {
    last_maker = std::max(last_maker, Maker(input));
  }
  const auto place = std::ranges::upper_bound(members, last_maker);
  if (place == members.end()) return false;
  for (const std::string& output : fused.outputs()) {
    for (int reader : Readers(output)) {
      if (reader < *place && !std::ranges::binary_search(members, reader)) return false;
    }
  }
  for (int member : members) {
    Unlink(member);
    if (member != *place) removed_.insert(member);
  }
  *graph_.mutable_nodes(*place) = std::move(fused);
  Link(*place);
  return true;
}

void GraphEdit::Unlink(int i) {
  for (const std::string& output : node(i).outputs()) makers_.erase(output);
  for (const std::string& input : node(i).inputs()) std::erase(readers_[input], i);
}

void GraphEdit::Link(int i) {
  for (const std::string& output : node(i).outputs()) makers_[output] = i;
  for (const std::string& input : node(i).inputs()) {
    std::vector<int>& readers = readers_[input];
    readers.insert(std::ranges::upper_bound(readers, i), i);
  }
}

}  // namespace muster
