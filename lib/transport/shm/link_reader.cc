#include "lib/transport/shm/link_reader.h"

#include <glog/logging.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {

absl::Status LinkReader::Map(const FileDescriptor& file) {
  ASSIGN_OR_RETURN(memory_,
                   SealedMemory::Map(file, message_ring::kBytes, SealedMemory::Access::kReadWrite));
  ring_ = MessageRingReader(memory_.memory());
  return absl::OkStatus();
}

absl::Status LinkReader::AddSlab(uint32_t number, uint64_t bytes, const FileDescriptor& file) {
  if (number == 0 || slabs_.size() >= kSlabsMax || slabs_.contains(number)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "slab ", number, " is 0, is already known, or exceeds the limit of ", kSlabsMax));
  }
  ASSIGN_OR_RETURN(SealedMemory slab, SealedMemory::Map(file, bytes, SealedMemory::Access::kRead));
  slabs_[number] = MappedSlab(std::move(slab));
  return absl::OkStatus();
}

absl::Status LinkReader::RemoveSlab(uint32_t number) {
  if (slabs_.erase(number) == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the peer withdrew unknown slab ", number));
}

absl::Status LinkReader::Take(const RingDescriptor& descriptor, PeerId from,
                              MessageReceiver& receiver, Lend lend, CopyCrew& crew) {
  if (descriptor.slab == 0) return TakeFragment(descriptor, from, receiver);
  return TakeFromSlab(descriptor, from, receiver, lend, crew);
}

void LinkReader::Drop(const RingDescriptor& descriptor) {
  ring_.Release(descriptor);
  if (descriptor.slab != 0) ring_.Return(descriptor.loan);
}

std::optional<WireHeader> LinkReader::DropArriving() {
  if (!std::exchange(arriving_, false)) return std::nullopt;
  if (std::exchange(place_, {}).empty()) return std::nullopt;
  return header_;
}

absl::Status LinkReader::TakeFragment(const RingDescriptor& fragment, PeerId from,
                                      MessageReceiver& receiver) {
  const WireHeader& header = fragment.header;
  // The headers are compared as bytes because a scalar may be NaN.
  if (fragment.position != (arriving_ ? arrived_ : 0) ||
      (arriving_ && EncodeHeader(header) != EncodeHeader(header_))) {
    return absl::InvalidArgumentError("a fragment is out of order in its message");
  }
  if (!arriving_) {
    arriving_ = true;
    header_ = header;
    arrived_ = 0;
    place_ =
        header.length > 0 ? receiver.PlacePayload(from, header).memory : absl::Span<std::byte>();
    CHECK(place_.empty() || place_.size() == header.length);
  }
  if (!place_.empty()) {
    std::memcpy(place_.data() + arrived_, ring_.InArea(fragment).data(), fragment.length);
  }
  ring_.Release(fragment);
  arrived_ += fragment.length;
  if (arrived_ < header.length) return absl::OkStatus();
  // The message ends before Received() is called. If the receiver disconnects the peer in that
  // call, DropArriving() runs and must find no message.
  arriving_ = false;
  if (place_.size() == header.length) receiver.Received(from, header, place_, {});
  return absl::OkStatus();
}

absl::Status LinkReader::TakeFromSlab(const RingDescriptor& descriptor, PeerId from,
                                      MessageReceiver& receiver, Lend lend, CopyCrew& crew) {
  // The ring entry can be reused, because its bytes were copied. The payload itself stays lent
  // until Return(loan).
  ring_.Release(descriptor);
  if (arriving_)
    return absl::InvalidArgumentError("a message arrived between the fragments of another");
  const auto found = slabs_.find(descriptor.slab);
  if (found == slabs_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("unknown slab ", descriptor.slab));
  }
  const absl::Span<std::byte> memory = found->second.memory();
  if (descriptor.offset > memory.size() || descriptor.length > memory.size() - descriptor.offset) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bytes ", descriptor.offset, " + ", descriptor.length, " of a slab of ", memory.size()));
  }
  const absl::Span<const std::byte> payload = memory.subspan(descriptor.offset, descriptor.length);
  const PayloadPlace place = receiver.PlacePayload(from, descriptor.header);
  CHECK(place.memory.empty() || place.memory.size() == payload.size());
  if (place.in_place && !place.memory.empty()) {
    receiver.Received(from, descriptor.header, payload, lend(descriptor.loan, found->second));
    return absl::OkStatus();
  }
  if (!place.memory.empty()) {
    crew.Copy(place.memory, payload,
              place.past_caches ? CopyCrew::Stores::kPastCaches : CopyCrew::Stores::kCached);
  }
  // The payload is returned after the copy, before Received() is called. The receiver may send an
  // answer in that call; the sender then owns its memory again when the answer arrives.
  ring_.Return(descriptor.loan);
  if (!place.memory.empty()) receiver.Received(from, descriptor.header, place.memory, {});
  return absl::OkStatus();
}

}  // namespace muster
