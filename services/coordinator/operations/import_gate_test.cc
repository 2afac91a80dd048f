#include "services/coordinator/operations/import_gate.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/synchronization/notification.h"

namespace muster::import_gate_test {
namespace {

bool Stays() { return false; }

TEST(ImportGateTest, WaitsForASlotUntilItsCallerIsGone) {
  ImportGate gate(2);
  auto first = gate.Enter(Stays);
  const auto second = gate.Enter(Stays);
  ASSERT_TRUE(first.ok() && second.ok());
  int asked = 0;
  EXPECT_TRUE(absl::IsCancelled(gate.Enter([&] { return ++asked > 2; }).status()));

  EXPECT_TRUE(absl::IsDeadlineExceeded(gate.Enter(Stays, absl::ZeroDuration()).status()));

  absl::Notification waits;
  std::thread third([&] {
    const auto slot = gate.Enter([&] {
      if (!waits.HasBeenNotified()) waits.Notify();
      return false;
    });
    EXPECT_TRUE(slot.ok());
  });
  waits.WaitForNotification();
  first->reset();
  third.join();

  EXPECT_TRUE(gate.Enter(Stays).ok()) << "the third gave its slot back";
}

}  // namespace
}  // namespace muster::import_gate_test
