#include "cli/local/local_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"

namespace muster::cli::local_cluster_test {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

// Members are shell scripts that read the folder of the cluster from $CLUSTER.
class LocalClusterTest : public ::testing::Test {
 protected:
  LocalClusterTest() {
    std::string folder = ::testing::TempDir() + "/local_cluster-XXXXXX";
    dir_ = mkdtemp(folder.data());
    setenv("CLUSTER", dir_.c_str(), 1);
    setenv("MUSTER_BIN_DIR", dir_.c_str(), 1);
  }

  std::string MakeBinary(const std::string& role, const std::string& script) {
    const std::string path = absl::StrCat(dir_, "/", role);
    std::ofstream(path) << "#!/bin/sh\n" << script;
    fs::permissions(path, fs::perms::owner_all);
    return path;
  }

  std::string record() const { return dir_ + "/cluster.json"; }

  // Writes and returns the record of a cluster with one ps that has ended.
  std::string WriteRecord(const std::string& ps) {
    const std::string text = absl::StrCat(
        R"({"address": "127.0.0.1:1", "directory": ")", dir_, R"(", "devices": "cpu",)",
        R"( "members": [{"name": "ps-0", "pid": 0, "start_ticks": 0, "argv": [")", ps, "\"]}]}\n");
    std::ofstream(record()) << text;
    fs::create_directories(dir_ + "/logs");
    return text;
  }

  std::string dir_;
};

TEST_F(LocalClusterTest, ADetachedMemberIsInTheRecordBeforeStartWaitsForIt) {
  MakeBinary("coordinator", R"(
until grep -q "\"pid\": $$," $CLUSTER/cluster.json; do sleep 0.01; done
mkdir $CLUSTER/before
cp $CLUSTER/cluster.json $CLUSTER/before
echo 127.0.0.1:1 >$CLUSTER/coordinator.address
exec sleep 600
)");
  MakeBinary("ps", R"(
until grep -q "\"pid\": $$," $CLUSTER/cluster.json; do sleep 0.01; done
until grep -q "\"whole\": true" $CLUSTER/cluster.json; do sleep 0.01; done
echo the record has me
)");
  MakeBinary("worker", "");

  const auto cluster = LocalCluster::Start({.dir = dir_,
                                            .workers = 0,
                                            .lifetime = Lifetime::kDetached,
                                            .start_timeout = absl::Seconds(20)});

  EXPECT_THAT(std::string(cluster.status().message()), HasSubstr("the record has me"));
  EXPECT_FALSE(fs::exists(record())) << "the failed start was not undone";
  const auto interrupted = LocalCluster::Open(dir_ + "/before");
  ASSERT_TRUE(interrupted.ok()) << interrupted.status();
  EXPECT_FALSE((*interrupted)->whole());
}

TEST_F(LocalClusterTest, AFailedWriteKeepsThePreviousRecordAndStopsTheMember) {
  const std::string ps = MakeBinary("ps", "exec sleep 600\n");
  const std::string before = WriteRecord(ps);
  // ReplaceFile() writes to this temporary name first, so the write fails.
  fs::create_symlink("/dev/full", absl::StrCat(record(), ".", getpid(), ".tmp"));
  auto cluster = LocalCluster::Open(dir_);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_TRUE((*cluster)->whole());

  const absl::Status status = (*cluster)->Restart("ps-0");

  ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReadAll(record()), before);
  EXPECT_FALSE((*cluster)->any_running()) << "a member that is in no record still runs";
  EXPECT_TRUE((*cluster)->Restart("ps-0").ok()) << "a restart fails though the disk has room again";
  EXPECT_TRUE((*LocalCluster::Open(dir_))->running("ps-0"));
  (*cluster)->Shutdown();
}

TEST_F(LocalClusterTest, ACoordinatorWithARelativeStateFolderIsNotLocal) {
  v1::ServerInfo info;
  info.set_state_dir("state");

  EXPECT_FALSE(IsLocalCluster(info));
}

TEST_F(LocalClusterTest, ACoordinatorThatIsKilledWhileItStartsWaitsForTheNextHeal) {
  // The second start is killed before it opens its port. The third one ends by itself.
  MakeBinary("coordinator", R"(
echo start >>$CLUSTER/starts
case $(wc -l <$CLUSTER/starts) in
  2) kill -9 $$ ;;
  3) echo my disk is broken; exit 74 ;;
esac
echo 127.0.0.1:1 >$CLUSTER/coordinator.address
exec sleep 600
)");
  MakeBinary("ps", "");
  MakeBinary("worker", "");
  const auto cluster = LocalCluster::Start({.dir = dir_, .ps = 0, .workers = 0});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE((*cluster)->Kill("coordinator", SIGKILL).ok());

  const auto killed = (*cluster)->Heal();
  ASSERT_TRUE(killed.ok()) << killed.status();
  EXPECT_EQ(killed->size(), 1);
  EXPECT_FALSE((*cluster)->running("coordinator"));
  EXPECT_THAT(std::string((*cluster)->AwaitAttached(absl::Seconds(20)).message()),
              HasSubstr("coordinator ended"));

  const auto ended = (*cluster)->Heal();
  EXPECT_THAT(std::string(ended.status().message()), HasSubstr("my disk is broken"));

  const auto healed = (*cluster)->Heal();
  ASSERT_TRUE(healed.ok()) << healed.status();
  EXPECT_TRUE((*cluster)->running("coordinator"));
  EXPECT_EQ(healed->front().end, "ended with exit code 74");
}

}  // namespace
}  // namespace muster::cli::local_cluster_test
