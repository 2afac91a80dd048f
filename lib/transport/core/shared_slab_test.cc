#include "lib/transport/core/shared_slab.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/status/status.h"
#include "lib/transport/core/file_descriptor.h"
#include "lib/transport/core/mapped_slab.h"
#include "lib/transport/core/sealed_memory.h"

namespace muster::shared_slab_test {
namespace {

using Access = SealedMemory::Access;
using Others = SealedMemory::Others;

std::shared_ptr<SharedSlab> MakeSlab(int64_t bytes) { return *SharedSlab::Allocate(bytes); }

FileDescriptor Duplicate(int fd) { return FileDescriptor(dup(fd)); }

TEST(SharedSlabTest, ASlabIsZeroedPages) {
  const auto slab = MakeSlab(100'000);
  ASSERT_EQ(slab->memory().size(), 100'000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(slab->memory().data()) % 4096, 0u);
  EXPECT_TRUE(std::all_of(slab->memory().begin(), slab->memory().end(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(SharedSlabTest, AnEmptySlabHoldsNothing) {
  const auto slab = MakeSlab(0);
  EXPECT_TRUE(slab->memory().empty());
  EXPECT_EQ(slab->fd(), -1);
  EXPECT_EQ(SharedSlab::Find({}), nullptr);
}

TEST(SharedSlabTest, FindNamesTheSlabThatHoldsAllOfTheMemory) {
  const auto a = MakeSlab(8192), b = MakeSlab(8192);
  const std::vector<std::byte> elsewhere(100);
  for (const auto& slab : {a, b}) {
    const absl::Span<std::byte> memory = slab->memory();
    EXPECT_EQ(SharedSlab::Find(memory), slab);
    EXPECT_EQ(SharedSlab::Find(memory.first(1)), slab);
    EXPECT_EQ(SharedSlab::Find(memory.last(1)), slab);
    EXPECT_EQ(SharedSlab::Find({memory.data() + 1, memory.size()}), nullptr);
    EXPECT_EQ(SharedSlab::Find({memory.data() - 1, 2}), nullptr);
    // The byte behind a slab may belong to the other slab.
    EXPECT_NE(SharedSlab::Find({memory.data() + memory.size(), 1}), slab);
  }
  EXPECT_EQ(SharedSlab::Find(elsewhere), nullptr);
}

TEST(SharedSlabTest, AFreedSlabIsNotFound) {
  auto slab = MakeSlab(4096);
  const absl::Span<const std::byte> memory = slab->memory();
  slab.reset();
  EXPECT_EQ(SharedSlab::Find(memory), nullptr);
}

TEST(SharedSlabTest, ThreadsAllocateFindAndFreeSlabsConcurrently) {
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 200; ++i) {
        auto slab = MakeSlab(4096 * (1 + i % 3));
        ASSERT_EQ(SharedSlab::Find(slab->memory()), slab);
      }
    });
  }
}

TEST(SharedSlabTest, AProcessWithTheFileSeesTheMemoryAndCannotWriteIt) {
  const auto slab = MakeSlab(4096);
  auto mapped = SealedMemory::Map(Duplicate(slab->fd()), 4096, Access::kRead);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  slab->memory()[17] = std::byte{42};
  EXPECT_EQ(mapped->memory()[17], std::byte{42});
  EXPECT_FALSE(SealedMemory::Map(Duplicate(slab->fd()), 4096, Access::kReadWrite).ok());
  EXPECT_NE(ftruncate(slab->fd(), 0), 0);
  EXPECT_NE(ftruncate(slab->fd(), 8192), 0);
}

TEST(SharedSlabTest, AMappingOutlivesTheSlab) {
  auto slab = MakeSlab(4096);
  auto mapped = SealedMemory::Map(Duplicate(slab->fd()), 4096, Access::kRead);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  slab->memory()[0] = std::byte{7};
  slab.reset();
  EXPECT_EQ(mapped->memory()[0], std::byte{7});
}

TEST(SealedMemoryTest, WritableMemoryIsSharedInBothDirections) {
  auto ours = SealedMemory::Create("test", 4096, Others::kWrite);
  ASSERT_TRUE(ours.ok()) << ours.status();
  auto theirs = SealedMemory::Map(Duplicate(ours->file()), 4096, Access::kReadWrite);
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  theirs->memory()[1] = std::byte{9};
  EXPECT_EQ(ours->memory()[1], std::byte{9});
}

TEST(SealedMemoryTest, MemoryThatCouldShrinkIsNotMapped) {
  FileDescriptor unsealed(memfd_create("test", MFD_ALLOW_SEALING | MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  FileDescriptor half_sealed(memfd_create("test", MFD_ALLOW_SEALING | MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(half_sealed.get(), 4096), 0);
  ASSERT_EQ(fcntl(half_sealed.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  FileDescriptor device(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  for (const FileDescriptor* file : {&unsealed, &half_sealed, &device}) {
    EXPECT_EQ(SealedMemory::Map(*file, 4096, Access::kRead).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(SealedMemory::Map(FileDescriptor(), 4096, Access::kRead).ok());
}

TEST(SealedMemoryTest, AWrongSizeIsRefused) {
  const auto slab = MakeSlab(8192);
  for (uint64_t bytes : {uint64_t{0}, uint64_t{4096}, uint64_t{8193}, ~uint64_t{0}}) {
    EXPECT_EQ(SealedMemory::Map(Duplicate(slab->fd()), bytes, Access::kRead).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bytes;
  }
}

TEST(SealedMemoryTest, AllocatingMoreThanTheAddressSpaceIsResourceExhausted) {
  auto slab = SharedSlab::Allocate(int64_t{1} << 62);
  ASSERT_EQ(slab.status().code(), absl::StatusCode::kResourceExhausted) << slab.status();
  EXPECT_EQ(ReasonOf(slab.status()), "MEMORY_EXHAUSTED");
}

bool IsMapped(const std::string& name) {
  std::ostringstream maps;
  maps << std::ifstream("/proc/self/maps").rdbuf();
  return maps.str().find(name) != std::string::npos;
}

TEST(MappedSlabTest, IsMappedUntilTheLastHandleIsGone) {
  constexpr char kName[] = "muster-mapped-slab-test";
  MappedSlab first(*SealedMemory::Create(kName, 4096, Others::kWrite));
  first.memory()[1] = std::byte{7};
  MappedSlab second = first;
  MappedSlab moved = std::move(first);
  second = MappedSlab();
  EXPECT_EQ(moved.memory()[1], std::byte{7});
  moved = MappedSlab(moved);
  EXPECT_TRUE(IsMapped(kName));
  moved = MappedSlab();
  EXPECT_FALSE(IsMapped(kName));
}

}  // namespace
}  // namespace muster::shared_slab_test
