#include "lib/transport/shm/link_writer.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {

using message_ring::kFragmentBytesMax;
using Kind = ControlPacket::Kind;

absl::Status LinkWriter::MakeMemory() {
  ASSIGN_OR_RETURN(memory_, SealedMemory::Create("muster-link", message_ring::kBytes,
                                                 SealedMemory::Others::kWrite));
  ring_ = MessageRingWriter(memory_.memory());
  loans_.resize(message_ring::kReturns);
  for (uint32_t i = message_ring::kReturns; i > 0; --i) free_loans_.push_back(i - 1);
  return absl::OkStatus();
}

void LinkWriter::Add(PendingSend* send) {
  (first_ == nullptr ? first_ : last_->next) = send;
  last_ = send;
}

// Whether to lend the payload if it is in a slab. If all loan numbers are in use, it is copied.
// Waiting for a loan could be a deadlock: the reader may return one only after a later message of
// this link has arrived.
bool LinkWriter::MayLend(const PendingSend& send) const {
  return send.copied == 0 && send.payload.size() > kCopiedBytesMax && !free_loans_.empty();
}

LinkWriter::Published LinkWriter::Publish(ControlSocket& socket) {
  PendingSend& send = *first_;
  const RegisteredSlabs::Slab* slab = MayLend(send) ? slabs_->Holding(send.payload) : nullptr;
  const Published published = slab != nullptr ? Lend(send, slab->number, socket) : Copy(send);
  if (published == Published::kAll) first_ = std::exchange(send.next, nullptr);
  return published;
}

// Must test the same conditions as Publish().
bool LinkWriter::CanPublish(bool socket_full) const {
  if (first_ == nullptr || !ring_.HasRoom()) return false;
  if (MayLend(*first_) && slabs_->Holding(first_->payload) != nullptr) return !socket_full;
  const size_t bytes = std::min(first_->payload.size() - first_->copied, kFragmentBytesMax);
  return ring_.PlaceInArea(bytes).has_value();
}

LinkWriter::Published LinkWriter::Lend(PendingSend& send, uint32_t number, ControlSocket& socket) {
  if (!ring_.HasRoom()) return Published::kPart;
  // The announcement of a slab must be sent before the first descriptor that names it.
  const absl::Status announced = Announce(number, socket);
  if (!announced.ok()) {
    if (absl::IsResourceExhausted(announced)) return Published::kSocketFull;
    return absl::IsAborted(announced) ? Published::kTryLater : Published::kSocketDead;
  }
  const std::byte* slab = slabs_->Numbered(number)->slab->memory().data();
  const uint32_t loan = free_loans_.back();
  free_loans_.pop_back();
  loans_[loan] = &send;
  send.slab = number;
  ring_.Publish({.header = send.header,
                 .offset = static_cast<uint64_t>(send.payload.data() - slab),
                 .length = send.payload.size(),
                 .slab = number,
                 .loan = loan});
  return Published::kAll;
}

LinkWriter::Published LinkWriter::Copy(PendingSend& send) {
  do {
    const auto fragment = send.payload.subspan(send.copied, kFragmentBytesMax);
    const std::optional<MessageRingWriter::Place> place = ring_.PlaceInArea(fragment.size());
    if (!place.has_value()) return Published::kPart;
    if (!fragment.empty()) std::memcpy(place->memory.data(), fragment.data(), fragment.size());
    ring_.Publish({.header = send.header,
                   .offset = place->offset,
                   .length = fragment.size(),
                   .position = send.copied});
    send.copied += fragment.size();
  } while (send.copied < send.payload.size());
  return Published::kAll;
}

// Sends the slab to the peer before the first payload in it, and counts one more loan of the slab.
absl::Status LinkWriter::Announce(uint32_t number, ControlSocket& socket) {
  auto known = std::find_if(announced_.begin(), announced_.end(),
                            [number](const Announced& known) { return known.slab == number; });
  if (known != announced_.end()) {
    ++known->loans;
    return absl::OkStatus();
  }
  const SharedSlab& slab = *slabs_->Numbered(number)->slab;
  RETURN_IF_ERROR(
      socket.Send({.kind = Kind::kSlab, .slab = number, .bytes = slab.memory().size()}, slab.fd()));
  announced_.push_back({number, 1});
  return absl::OkStatus();
}

void LinkWriter::Withdraw(ControlSocket& socket) {
  std::erase_if(announced_, [&](const Announced& announced) {
    if (announced.loans > 0 || slabs_->Numbered(announced.slab) != nullptr) return false;
    const absl::Status said = socket.Send({.kind = Kind::kWithdraw, .slab = announced.slab});
    // If the socket has no room, the slab stays announced, and the next turn tries again.
    const bool later = absl::IsResourceExhausted(said) || absl::IsAborted(said);
    if (later) slabs_->Remind();
    return !later;
  });
}

int LinkWriter::loans_out() const { return static_cast<int>(loans_.size() - free_loans_.size()); }

absl::StatusOr<int> LinkWriter::TakeReturns() {
  int returns = 0;
  while (loans_out() > 0) {
    const std::optional<uint32_t> loan = ring_.TakeReturn();
    if (!loan.has_value()) break;
    // The reader wrote this number, so it must be checked before use.
    if (*loan >= loans_.size() || loans_[*loan] == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("the peer returned loan ", *loan, ", which it does not have"));
    }
    PendingSend* send = std::exchange(loans_[*loan], nullptr);
    free_loans_.push_back(*loan);
    for (Announced& announced : announced_) {
      if (announced.slab != send->slab) continue;
      if (--announced.loans == 0 && slabs_->Numbered(send->slab) == nullptr) slabs_->Remind();
    }
    sends_->FinishLater(send, absl::OkStatus());
    ++returns;
  }
  return returns;
}

void LinkWriter::CancelWaiting(const absl::Status& why) {
  while (first_ != nullptr) {
    PendingSend* send = first_;
    first_ = std::exchange(send->next, nullptr);
    sends_->FinishLater(send, why);
  }
}

void LinkWriter::EndLoans(const absl::Status& why) {
  for (uint32_t loan = 0; loan < loans_.size(); ++loan) {
    if (loans_[loan] == nullptr) continue;
    sends_->FinishLater(std::exchange(loans_[loan], nullptr), why);
    free_loans_.push_back(loan);
  }
}

}  // namespace muster
