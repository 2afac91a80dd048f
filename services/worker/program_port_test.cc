#include "services/worker/program_port.h"

#include <gtest/gtest.h>

#include "services/worker/fake_program.h"

namespace muster::program_port_test {
namespace {

TEST(ProgramPortTest, Listens) {
  auto port = ProgramPort::Listen(NewSocketPath());
  ASSERT_TRUE(port.ok()) << port.status();
}

}  // namespace
}  // namespace muster::program_port_test
