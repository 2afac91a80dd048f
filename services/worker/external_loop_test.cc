#include "services/worker/external_loop.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/exchange/fake_ps.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "services/worker/driven_worker.h"
#include "services/worker/fake_program.h"
#include "services/worker/program_port.h"
#include "services/worker/tiny_jobs.h"

namespace muster::external_loop_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr int kW = 0, kFrozen = 1, kB = 2;  // parameters

// A worker with a socket for programs.
struct Member {
  Member(InProcessNetwork& network, const FakePs& ps, int rank = 0)
      : port(ProgramPort::Listen(NewSocketPath()).value()),
        worker(
            ps.plan(), [&network] { return network.MakeTransport(); }, rank, port.get()) {}
  std::unique_ptr<ProgramPort> port;
  Driven worker;
};

TEST(ExternalLoopTest, TwoProgramsLearnALine) {
  InProcessNetwork network;
  FakePs ps(network, ProgramJob(/*workers=*/2));
  Member first(network, ps, 0), second(network, ps, 1);
  json ends[2];
  {
    std::vector<std::jthread> programs;
    for (int rank = 0; rank < 2; ++rank) {
      programs.emplace_back([&, rank] {
        FakeProgram program((rank == 0 ? first : second).port->path());
        program.Attach();
        ends[rank] = program.TrainLine();
      });
    }
    for (Member* member : {&first, &second}) {
      member->worker.Prepare();
      EXPECT_EQ(member->worker.Await(v1::MEMBER_PREPARED).dataset().samples(), 512);
      member->worker.Start(/*total_steps=*/100);
    }
  }
  for (const json& end : ends) EXPECT_EQ(end["reason"], "done");
  EXPECT_NEAR(ps.parameter(kW)[0], 3, 0.03);
  EXPECT_NEAR(ps.parameter(kB)[0], -0.5, 0.01);

  const v1::JobReport done = first.worker.Await(v1::MEMBER_DONE);
  ASSERT_EQ(done.steps_size(), 100);
  for (int s = 0; s < 100; ++s) {
    EXPECT_EQ(done.steps(s).step(), s);
    EXPECT_FALSE(done.steps(s).has_no_loss());
  }
  EXPECT_EQ(done.steps(7).learning_rate(), 0.3);
  EXPECT_GT(done.steps(0).gradient_norm(), 0);
  EXPECT_GT(done.steps(0).loss_share(), done.steps(99).loss_share());
  EXPECT_DOUBLE_EQ(done.steps(5).metric_shares().at("twice"), 2 * done.steps(5).loss_share());
  EXPECT_FALSE(done.has_program_wait());
  EXPECT_THAT(first.worker.Rendered(), HasSubstr("muster_worker_steps_total 100"));
}

}  // namespace
}  // namespace muster::external_loop_test
