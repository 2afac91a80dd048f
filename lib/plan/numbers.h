// The numbers that identify parts of a job. Each is a type of its own, so that none can be passed
// for another.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace muster {

enum class Rank : int32_t {};        // a worker's place in the plan
enum class ShardIndex : int32_t {};  // a shard's place in the plan
enum class ChunkId : int32_t {};     // a chunk's place in the plan
// A chunk's place among the chunks of its shard, in the plan's order.
enum class LocalChunk : int32_t {};
// A chunk's place among the chunks of its shard that have gradients: all except those of frozen
// parameters.
enum class TrainedChunk : int32_t {};

// The shard that all others report to when they must agree.
inline constexpr ShardIndex kFirstShard{0};

// Numbers enter from messages and protos as Rank(header.rank), unchecked. ToInt() converts them for
// text and arithmetic.
template <typename N>
concept PartNumber = std::same_as<N, Rank> || std::same_as<N, ShardIndex> ||
    std::same_as<N, ChunkId> || std::same_as<N, LocalChunk> || std::same_as<N, TrainedChunk>;

template <PartNumber N>
constexpr int ToInt(N number) {
  return static_cast<int>(number);
}

template <PartNumber N>
std::ostream& operator<<(std::ostream& out, N number) {
  return out << ToInt(number);
}

// 0, 1, ..., count - 1: for (const Rank rank : NumbersBelow<Rank>(ranks)).
template <PartNumber N>
class NumbersBelow {
 public:
  class Iterator {
   public:
    constexpr explicit Iterator(int at) : at_(at) {}
    constexpr N operator*() const { return N(at_); }
    constexpr Iterator& operator++() {
      ++at_;
      return *this;
    }
    friend constexpr bool operator==(Iterator, Iterator) = default;

   private:
    int at_;
  };

  constexpr explicit NumbersBelow(int count) : count_(count) {}
  constexpr Iterator begin() const { return Iterator(0); }
  constexpr Iterator end() const { return Iterator(count_); }

 private:
  int count_;
};

// A vector with one element per number. Like a vector, it does not check numbers.
template <PartNumber N, typename T>
class NumberedVector {
 public:
  using value_type = T;
  using const_iterator = typename std::vector<T>::const_iterator;

  NumberedVector() = default;
  explicit NumberedVector(int count) : elements_(count) {}
  NumberedVector(int count, const T& value) : elements_(count, value) {}
  NumberedVector(std::initializer_list<T> elements) : elements_(elements) {}

  decltype(auto) operator[](N number) { return elements_[ToInt(number)]; }
  decltype(auto) operator[](N number) const { return elements_[ToInt(number)]; }
  bool Has(N number) const { return ToInt(number) >= 0 && ToInt(number) < size(); }

  // Appends the element of the next number.
  template <typename... Arguments>
  decltype(auto) emplace_back(Arguments&&... arguments) {
    return elements_.emplace_back(std::forward<Arguments>(arguments)...);
  }

  int size() const { return static_cast<int>(elements_.size()); }
  bool empty() const { return elements_.empty(); }
  NumbersBelow<N> numbers() const { return NumbersBelow<N>(size()); }
  auto begin() { return elements_.begin(); }
  auto end() { return elements_.end(); }
  auto begin() const { return elements_.begin(); }
  auto end() const { return elements_.end(); }
  // Returns the number of `element`. Requires: it is an element of this vector.
  N NumberOf(const T& element) const {
    return N(static_cast<int32_t>(&element - elements_.data()));
  }

 private:
  std::vector<T> elements_;
};

// A table with one element per pair of numbers. Like a vector, it does not check numbers.
template <PartNumber Row, PartNumber Column, typename T>
class NumberedTable {
 public:
  NumberedTable(int rows, int columns)
      : columns_(columns), elements_(static_cast<size_t>(rows) * columns) {}
  NumberedTable(int rows, int columns, const T& value)
      : columns_(columns), elements_(static_cast<size_t>(rows) * columns, value) {}

  T& operator()(Row row, Column column) { return elements_[At(row, column)]; }
  const T& operator()(Row row, Column column) const { return elements_[At(row, column)]; }
  absl::Span<const T> row(Row row) const { return {&elements_[At(row, Column(0))], columns_}; }
  absl::Span<T> row(Row row) { return {&elements_[At(row, Column(0))], columns_}; }

  auto begin() { return elements_.begin(); }
  auto end() { return elements_.end(); }

 private:
  size_t At(Row row, Column column) const { return ToInt(row) * columns_ + ToInt(column); }

  size_t columns_;
  std::vector<T> elements_;
};

}  // namespace muster
