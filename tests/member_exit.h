// Waits for a member of a cluster under test to exit.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/training_cluster.h"

namespace muster {

// Waits for the end of a running member and checks its exit code.
class MemberExit {
 public:
  MemberExit(TrainingCluster* cluster, const std::string& member)
      : cluster_(cluster), member_(member) {
    // (glibc declares pidfd_open for C only.)
    process_ = static_cast<int>(syscall(SYS_pidfd_open, cluster->members().pid(member), 0));
    EXPECT_GE(process_, 0);
  }
  ~MemberExit() { close(process_); }

  // Blocks until a SIGSTOP that was sent has stopped all threads of the process.
  void AwaitStop() {
    siginfo_t stop{};
    EXPECT_EQ(waitid(P_PIDFD, process_, &stop, WSTOPPED | WNOWAIT), 0);
    EXPECT_EQ(stop.si_code, CLD_STOPPED);
  }

  // Fails the test unless the member exits with `code` within 20 seconds.
  void Expect(int code) {
    SCOPED_TRACE(member_);
    pollfd process{.fd = process_, .events = POLLIN};
    siginfo_t end{};
    EXPECT_EQ(poll(&process, 1, 20'000), 1) << cluster_->Logs();
    EXPECT_EQ(waitid(P_PIDFD, process_, &end, WEXITED | WNOHANG | WNOWAIT), 0);
    EXPECT_EQ(end.si_code, CLD_EXITED);
    EXPECT_EQ(end.si_status, code);
    ASSERT_TRUE(cluster_->members().AwaitExit(member_, absl::ZeroDuration()).ok());
  }

 private:
  TrainingCluster* const cluster_;
  const std::string member_;
  int process_;
};

inline void ExpectOrderlyExit(TrainingCluster& cluster, const std::string& member) {
  MemberExit exit(&cluster, member);
  ASSERT_TRUE(cluster.members().Kill(member, SIGTERM).ok());
  exit.Expect(0);
}

}  // namespace muster
