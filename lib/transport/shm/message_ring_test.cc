#include "lib/transport/shm/message_ring.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/transport/core/wire.h"

namespace muster::message_ring_test {
namespace {

using namespace message_ring;
using Bytes = std::array<std::byte, RingDescriptor::kBytes>;

WireHeader HeaderOf(uint64_t length) {
  return {.kind = MessageKind::kPush, .dtype = WireDType::kF32, .chunk = 7, .length = length};
}

RingDescriptor Fragment() {
  return {.header = HeaderOf(100'000),
          .offset = 3 * kAreaBytes + 640,
          .length = 60'000,
          .position = 40'000};
}

RingDescriptor InSlab() {
  return {
      .header = HeaderOf(4 << 20), .offset = 12'345, .length = 4 << 20, .slab = 3, .loan = 1023};
}

TEST(RingDescriptorTest, DecodingAnEncodedDescriptorGivesTheSame) {
  RingDescriptor empty{.header = HeaderOf(0)};
  for (const RingDescriptor& descriptor : {Fragment(), InSlab(), empty}) {
    auto decoded = DecodeDescriptor(EncodeDescriptor(descriptor, 5));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, descriptor);
  }
}

// docs/protocol.md shows these bytes.
TEST(RingDescriptorTest, ADescriptorHasTheBytesOfTheProtocol) {
  const RingDescriptor descriptor{.header = {.kind = MessageKind::kPush,
                                             .dtype = WireDType::kF32,
                                             .generation = 3,
                                             .job = 42,
                                             .step = 1000,
                                             .chunk = 7,
                                             .rank = 1,
                                             .length = 4 << 20},
                                  .offset = 8 << 20,
                                  .length = 4 << 20,
                                  .slab = 2,
                                  .loan = 17};
  const uint8_t expected[] = {
      0x05, 0x01, 0,    0, 0,    0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0,  // number, offset
      0,    0,    0x40, 0, 0,    0, 0, 0, 0, 0, 0,    0, 0, 0, 0, 0,  // length, position
      0x02, 0,    0,    0, 0x11, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0, 0,  // slab, loan
      0,    0,    0,    0, 0,    0, 0, 0, 0, 0, 0,    0, 0, 0, 0, 0};
  const Bytes bytes = EncodeDescriptor(descriptor, 261);
  const auto header = EncodeHeader(descriptor.header);
  EXPECT_EQ(std::memcmp(bytes.data(), header.data(), header.size()), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + header.size(), expected, sizeof(expected)), 0);
}

TEST(RingDescriptorTest, DescriptorsThatNoWriterWritesAreRefused) {
  const auto refused = [](RingDescriptor descriptor) {
    return absl::IsInvalidArgument(DecodeDescriptor(EncodeDescriptor(descriptor, 1)).status());
  };
  const auto fragment = [](auto change) {
    RingDescriptor changed = Fragment();
    change(changed);
    return changed;
  };
  const auto in_slab = [](auto change) {
    RingDescriptor changed = InSlab();
    change(changed);
    return changed;
  };
  const uint64_t huge = ~uint64_t{0};
  EXPECT_TRUE(refused(fragment([](auto& d) { d.length = 60'001; })));  // past the payload
  EXPECT_TRUE(refused(fragment([](auto& d) { d.length = 0; })));
  EXPECT_TRUE(refused(fragment([&](auto& d) { d.length = huge; })));
  EXPECT_TRUE(refused(fragment([&](auto& d) { d.position = huge; })));
  EXPECT_TRUE(refused(fragment([&](auto& d) { d.position = huge - 59'999; })));
  EXPECT_TRUE(refused(fragment([&](auto& d) { d.offset = kAreaBytes - 64; })));
  EXPECT_TRUE(refused(fragment([&](auto& d) { d.offset = 1; })));
  EXPECT_TRUE(refused(fragment([](auto& d) { d.loan = 1; })));
  EXPECT_TRUE(refused(fragment([](auto& d) {
    d.header.length = d.length = kFragmentBytesMax + 64;
    d.position = 0;
  })));
  EXPECT_TRUE(refused(in_slab([](auto& d) { d.length -= 1; })));
  EXPECT_TRUE(refused(in_slab([](auto& d) { d.position = 1; })));
  EXPECT_TRUE(refused(in_slab([](auto& d) { d.loan = kReturns; })));
  EXPECT_TRUE(refused(in_slab([&](auto& d) { d.offset = huge; })));
  EXPECT_TRUE(refused(in_slab([](auto& d) { d.length = d.header.length = 0; })));
  for (size_t at = 104; at < RingDescriptor::kBytes; ++at) {
    Bytes bytes = EncodeDescriptor(InSlab(), 1);
    bytes[at] = std::byte{1};
    EXPECT_FALSE(DecodeDescriptor(bytes).ok()) << at;
  }
  const Bytes good = EncodeDescriptor(InSlab(), 1);
  EXPECT_FALSE(DecodeDescriptor(absl::MakeConstSpan(good).first(127)).ok());
}

TEST(RingDescriptorTest, DecodedDescriptorsStayWithinTheArea) {
  const uint32_t seed = 20'240'731;
  std::mt19937_64 random(seed);
  int accepted = 0;
  for (int draw = 0; draw < 200'000; ++draw) {
    RingDescriptor descriptor = random() % 2 == 0 ? Fragment() : InSlab();
    // A valid header, so that the other fields are checked, and random values in a few fields.
    const auto anything = [&] { return random() >> random() % 64; };
    if (random() % 4 == 0) descriptor.header.length = anything();
    if (random() % 4 == 0) descriptor.length = anything();
    if (random() % 4 == 0) descriptor.offset = anything();
    if (random() % 4 == 0) descriptor.position = anything();
    if (random() % 8 == 0) descriptor.slab = static_cast<uint32_t>(anything());
    Bytes bytes = EncodeDescriptor(descriptor, 1);
    if (random() % 8 == 0) bytes[random() % bytes.size()] ^= std::byte{1};
    const auto decoded = DecodeDescriptor(bytes);
    if (!decoded.ok()) continue;
    ++accepted;
    const RingDescriptor& d = *decoded;
    if (d.slab == 0) {
      ASSERT_LE(d.offset % kAreaBytes + d.length, kAreaBytes) << "seed " << seed;
      ASSERT_LE(d.length, kFragmentBytesMax);
    }
    ASSERT_LE(d.position, d.header.length) << "seed " << seed;
    ASSERT_LE(d.length, d.header.length - d.position) << "seed " << seed;
    ASSERT_GE(d.offset + d.length, d.offset) << "seed " << seed;
    ASSERT_LT(d.loan, kReturns) << "seed " << seed;
  }
  EXPECT_GT(accepted, 1000);
}

class MessageRingTest : public testing::Test {
 protected:
  // Takes the next descriptor without releasing it.
  std::optional<RingDescriptor> Take() {
    Bytes bytes;
    if (!reader_.Take(bytes)) return std::nullopt;
    auto decoded = DecodeDescriptor(bytes);
    EXPECT_TRUE(decoded.ok()) << decoded.status();
    return *decoded;
  }
  bool Write(size_t bytes, std::byte fill) {
    const auto place = writer_.PlaceInArea(bytes);
    if (!place.has_value()) return false;
    std::memset(place->memory.data(), std::to_integer<int>(fill), bytes);
    writer_.Publish({.header = HeaderOf(bytes), .offset = place->offset, .length = bytes});
    return true;
  }

  struct alignas(4096) Page {
    std::byte bytes[4096];
  };
  std::vector<Page> pages_ = std::vector<Page>(kBytes / sizeof(Page));
  const absl::Span<std::byte> memory_ = {pages_[0].bytes, kBytes};
  MessageRingWriter writer_{memory_};
  MessageRingReader reader_{memory_};
};

TEST_F(MessageRingTest, MessagesKeepTheirContentForManyLaps) {
  for (uint32_t i = 0; i < 5 * kEntries; ++i) {
    const size_t bytes = i * 997 % 100'000 + 1;
    ASSERT_TRUE(Write(bytes, static_cast<std::byte>(i)));
    const auto taken = Take();
    ASSERT_TRUE(taken.has_value());
    const absl::Span<const std::byte> payload = reader_.InArea(*taken);
    ASSERT_EQ(payload.size(), bytes);
    EXPECT_EQ(payload.front(), static_cast<std::byte>(i));
    EXPECT_EQ(payload.back(), static_cast<std::byte>(i));
    reader_.Release(*taken);
    EXPECT_FALSE(reader_.HasMessage());
  }
}

TEST_F(MessageRingTest, AFullRingRejectsMessagesUntilOneIsReleased) {
  uint64_t written = 0;
  while (writer_.HasRoom()) {
    writer_.Publish({.header = HeaderOf(0)});
    ++written;
  }
  EXPECT_EQ(written, kEntries);
  EXPECT_FALSE(writer_.PlaceInArea(64).has_value());
  EXPECT_FALSE(writer_.PlaceInArea(0).has_value());
  const auto taken = Take();
  EXPECT_FALSE(writer_.HasRoom());
  reader_.Release(*taken);
  EXPECT_TRUE(writer_.HasRoom());
}

TEST_F(MessageRingTest, AFullAreaRejectsMessagesUntilOneIsReleased) {
  uint64_t written = 0;
  while (Write(kFragmentBytesMax, std::byte{1})) ++written;
  EXPECT_EQ(written, kAreaBytes / kFragmentBytesMax);
  EXPECT_TRUE(writer_.HasRoom());
  EXPECT_FALSE(Write(1, std::byte{1}));
  reader_.Release(*Take());
  EXPECT_TRUE(Write(kFragmentBytesMax, std::byte{1}));
  EXPECT_FALSE(Write(1, std::byte{1}));
}

// Equal payloads with a size that is no multiple of the alignment fill the area, in one lap, to its
// last bytes. The place after them, rounded up, is past the free bytes.
TEST_F(MessageRingTest, AMessageWithoutPayloadPassesAFullAreaWithoutHarm) {
  constexpr size_t kPayload = 10'000;
  ASSERT_TRUE(Write(1, std::byte{1}));  // so that the others do not start at offset 0
  reader_.Release(*Take());
  while (Write(kPayload, std::byte{1})) {
  }
  reader_.Release(*Take());
  ASSERT_TRUE(Write(kPayload, std::byte{2}));
  ASSERT_FALSE(Write(1, std::byte{3}));
  EXPECT_TRUE(Write(0, std::byte{}));
  EXPECT_FALSE(Write(1, std::byte{3}));
  while (const auto taken = Take()) reader_.Release(*taken);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(Write(kPayload, std::byte{4})) << i;
    reader_.Release(*Take());
  }
}

TEST_F(MessageRingTest, ReturnsKeepTheirOrderForManyLaps) {
  EXPECT_FALSE(writer_.TakeReturn().has_value());
  for (uint32_t lap = 0; lap < 5; ++lap) {
    for (uint32_t i = 0; i < kReturns; ++i) reader_.Return((i * 7 + lap) % kReturns);
    for (uint32_t i = 0; i < kReturns; ++i) {
      EXPECT_TRUE(writer_.HasReturn());
      ASSERT_EQ(writer_.TakeReturn(), (i * 7 + lap) % kReturns);
    }
    EXPECT_FALSE(writer_.HasReturn());
  }
}

TEST_F(MessageRingTest, ASleeperIsWokenOnce) {
  EXPECT_FALSE(writer_.TakeReaderSleeps());
  reader_.SetSleeps(true);
  EXPECT_TRUE(writer_.TakeReaderSleeps());
  EXPECT_FALSE(writer_.TakeReaderSleeps());
  writer_.SetSleeps(true);
  EXPECT_TRUE(reader_.TakeWriterSleeps());
  EXPECT_FALSE(reader_.TakeWriterSleeps());
  reader_.SetSleeps(true);
  reader_.SetSleeps(false);
  EXPECT_FALSE(writer_.TakeReaderSleeps());
}

// Both sides act at the same moment, in many rounds. Without the fence in Settle() they miss each
// other within some hundred rounds, if two processors are free.
TEST_F(MessageRingTest, AReaderThatFallsAsleepDuringAPublishSeesItOrIsWoken) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  std::atomic<int> begun = 0, written = 0;
  std::atomic<bool> ended = false;
  bool rang = false;
  const auto await = [&](const std::atomic<int>& count, int round) {
    for (int spins = 1; count.load() < round && !ended.load(); ++spins) {
      if (spins % 1000 == 0) std::this_thread::yield();
    }
  };
  std::jthread writing([&] {
    for (int round = 1; !ended.load(); ++round) {
      await(begun, round);
      writer_.Publish({.header = HeaderOf(0)});
      Settle();
      rang = writer_.TakeReaderSleeps();
      written = round;
    }
  });
  for (int round = 1; std::chrono::steady_clock::now() < deadline; ++round) {
    begun = round;
    for (volatile int i = round % 512; i > 0;) i = i - 1;  // as long as publishing may take
    reader_.SetSleeps(true);
    Settle();
    const bool seen = reader_.HasMessage();
    await(written, round);
    EXPECT_TRUE(seen || rang) << "round " << round;
    reader_.SetSleeps(false);
    reader_.Release(*Take());
    if (HasFailure()) break;
  }
  ended = true;
}

// Runs both sides against memory into which the other one writes random bytes. They may stop making
// progress, but must stay within the memory.
TEST_F(MessageRingTest, RandomBytesInTheMemoryNeverCauseAnAccessOutsideIt) {
  const uint32_t seed = 77;
  std::mt19937_64 random(seed);
  for (int draw = 0; draw < 3000; ++draw) {
    for (int i = 0; i < 4; ++i) {
      const size_t words = (i == 0 ? 4096 : kAreaAt) / 8;
      const uint64_t word = random() >> random() % 64;
      std::memcpy(memory_.data() + random() % words * 8, &word, 8);
    }
    const size_t bytes = random() % (kFragmentBytesMax + 1);
    if (const auto place = writer_.PlaceInArea(bytes); place.has_value()) {
      ASSERT_GE(place->memory.data(), memory_.data() + kAreaAt);
      ASSERT_LE(place->memory.data() + bytes, memory_.data() + kBytes);
      std::memset(place->memory.data(), draw, bytes);
      writer_.Publish({.header = HeaderOf(bytes), .offset = place->offset, .length = bytes});
    }
    writer_.TakeReturn();
    Bytes taken;
    if (!reader_.Take(taken)) continue;
    const auto decoded = DecodeDescriptor(taken);
    if (!decoded.ok()) continue;
    if (decoded->slab == 0) {
      const absl::Span<const std::byte> payload = reader_.InArea(*decoded);
      ASSERT_GE(payload.data(), memory_.data() + kAreaAt);
      ASSERT_LE(payload.data() + payload.size(), memory_.data() + kBytes);
    }
    reader_.Release(*decoded);
    reader_.Return(static_cast<uint32_t>(random()));
  }
}

}  // namespace
}  // namespace muster::message_ring_test
