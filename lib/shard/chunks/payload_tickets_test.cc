#include "lib/shard/chunks/payload_tickets.h"

#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "gtest/gtest.h"

namespace {
int64_t allocations = 0;
}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace muster::payload_tickets_test {
namespace {

struct Owner {
  PayloadTickets<Owner> tickets{this};
  int finished = 0;
};

TEST(PayloadTicketsTest, TheOwnerIsIdleWhenAllTicketsAreBack) {
  Owner owner;
  EXPECT_TRUE(owner.tickets.all_back());
  auto first = owner.tickets.Take();
  {
    auto second = owner.tickets.Take();
    first.GiveBack();
    EXPECT_FALSE(first);
    EXPECT_FALSE(owner.tickets.all_back());
  }
  EXPECT_TRUE(owner.tickets.all_back());
  first.GiveBack();  // the second call does nothing
  EXPECT_TRUE(owner.tickets.all_back());
}

TEST(PayloadTicketsTest, AMovedTicketCountsOnce) {
  Owner owner;
  auto first = owner.tickets.Take();
  auto second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT: that is what is tested
  EXPECT_FALSE(owner.tickets.all_back());
  second = {};
  EXPECT_TRUE(owner.tickets.all_back());
  second = owner.tickets.Take();
  second = owner.tickets.Take();
  second.GiveBack();
  EXPECT_TRUE(owner.tickets.all_back()) << "assignment returns the ticket held before";
}

TEST(PayloadTicketsTest, DoneWithATicketAndAWordAllocatesNothing) {
  Owner owner;
  const int64_t before = allocations;
  absl::AnyInvocable<void()> done = [ticket = owner.tickets.Take(), add = int64_t{3}]() mutable {
    Owner& owner = ticket.owner();
    ticket.GiveBack();
    owner.finished += static_cast<int>(add);
  };
  EXPECT_EQ(allocations, before);
  EXPECT_FALSE(owner.tickets.all_back());
  done();
  EXPECT_EQ(owner.finished, 3);
  EXPECT_TRUE(owner.tickets.all_back());

  done = [ticket = owner.tickets.Take()] {};
  EXPECT_FALSE(owner.tickets.all_back());
  done = nullptr;
  EXPECT_TRUE(owner.tickets.all_back()) << "also if it is never called";
}

TEST(PayloadTicketsDeathTest, NoTicketOutlivesTheOwner) {
  EXPECT_DEATH(
      {
        PayloadTickets<Owner>::Ticket ticket;
        Owner owner;
        ticket = owner.tickets.Take();
      },
      "still under way");
}

}  // namespace
}  // namespace muster::payload_tickets_test
