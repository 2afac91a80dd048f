#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <latch>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/checkpoint_layout.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/checkpoint_writer.h"
#include "lib/checkpoint/known_checkpoint.h"
#include "lib/checkpoint/safetensors.h"
#include "lib/checkpoint/shared_files.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"

namespace muster::checkpoint_test {
namespace {

std::unique_ptr<CheckpointWriter> Create(const std::string& directory, const v1::JobPlan& plan,
                                         int64_t step, int64_t file_bytes_max = int64_t{5} << 30) {
  auto writer = CheckpointWriter::Create(plan, {.directory = directory,
                                                .id = "test",
                                                .step = step,
                                                .total_steps = 100,
                                                .file_bytes_max = file_bytes_max});
  EXPECT_TRUE(writer.ok()) << writer.status();
  return *std::move(writer);
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(CheckpointTest, ReadsBackWhateverTheOrderOfSlicesAndThreads) {
  const std::string folder = TestFolder();
  const v1::JobPlan plan = KnownPlan();
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    const int threads = 1 + seed % 4;
    auto writer = Create(folder, plan, seed);
    ASSERT_TRUE(WriteKnownSlices(*writer, plan, seed, threads, seed).ok());
    ASSERT_TRUE(writer->complete());
    absl::StatusOr<v1::Checkpoint> committed = writer->Commit();
    ASSERT_TRUE(committed.ok()) << committed.status();

    EXPECT_EQ(committed->name(), absl::StrCat("jobs/known-1/checkpoints/", seed));
    absl::StatusOr<int> edition = ReadKnownCheckpoint(committed->directory(), plan);
    ASSERT_TRUE(edition.ok()) << edition.status();
    EXPECT_EQ(*edition, seed);
  }
}

TEST(CheckpointTest, ReaderAndWriterDescribeItInTheSameWay) {
  const v1::JobPlan plan = KnownPlan();
  absl::StatusOr<v1::Checkpoint> committed = WriteKnownCheckpoint(TestFolder(), plan, 50, 1);
  ASSERT_TRUE(committed.ok()) << committed.status();

  auto reader = CheckpointReader::Open(committed->directory());

  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->ToProto("known-1").SerializeAsString(), committed->SerializeAsString());
  EXPECT_EQ((*reader)->manifest().total_steps, 100);
  EXPECT_EQ((*reader)->manifest().slots, (std::vector<std::string>{"m", "v"}));
  EXPECT_EQ((*reader)->manifest().spec.SerializeAsString(), plan.spec().SerializeAsString());
  EXPECT_EQ(committed->files_size(), 2);
  EXPECT_EQ(NamesIn(committed->directory()),
            (std::vector<std::string>{"manifest.json", "model-00001-of-00001.safetensors",
                                      "optimizer-00001-of-00001.safetensors"}));
}

TEST(CheckpointTest, FilesHoldWholeTensorsUpToTheirLimit) {
  const v1::JobPlan plan = KnownPlan({{10}, {10}, {1000}, {10}, {11}}, /*slots=*/false);
  auto writer = Create(TestFolder(), plan, 1, /*file_bytes_max=*/80);
  ASSERT_TRUE(WriteKnownSlices(*writer, plan, 3).ok());

  absl::StatusOr<v1::Checkpoint> committed = writer->Commit();

  ASSERT_TRUE(committed.ok()) << committed.status();
  std::vector<size_t> tensors;
  for (const v1::CheckpointFile& file : committed->files()) {
    auto header = ReadSafetensorsHeader(absl::StrCat(committed->directory(), "/", file.name()));
    ASSERT_TRUE(header.ok()) << header.status();
    tensors.push_back(header->tensors.size());
  }
  EXPECT_EQ(tensors, (std::vector<size_t>{2, 1, 1, 1}));
  EXPECT_EQ(committed->files(3).name(), "model-00004-of-00004.safetensors");
  EXPECT_EQ(*ReadKnownCheckpoint(committed->directory(), plan), 3);
}

TEST(CheckpointTest, SameJobWithAnotherIdWritesTheSameBytes) {
  const std::string folder = TestFolder();
  v1::JobPlan plan = KnownPlan();
  absl::StatusOr<v1::Checkpoint> first = WriteKnownCheckpoint(folder + "/first", plan, 50, 1);
  plan.set_job("known-2345");
  absl::StatusOr<v1::Checkpoint> second = WriteKnownCheckpoint(folder + "/second", plan, 50, 1);

  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  for (int i = 0; i < first->files_size(); ++i)
    EXPECT_EQ(first->files(i).sha256(), second->files(i).sha256());
}

TEST(CheckpointTest, CommitIsRefusedUntilEveryByteIsWritten) {
  const std::string folder = TestFolder();
  const v1::JobPlan plan = KnownPlan({{4}}, /*slots=*/false);
  const std::vector<float> values(3, 1.0f);
  {
    auto writer = Create(folder, plan, 5);
    ASSERT_TRUE(
        writer->WriteSlice(0, 0, 4, {reinterpret_cast<const std::byte*>(values.data()), 12}).ok());
    EXPECT_FALSE(writer->complete());

    absl::Status status = writer->Commit().status();

    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "chunk 0 slot 0")) << status;
    ASSERT_TRUE(
        writer->WriteSlice(0, 0, 0, {reinterpret_cast<const std::byte*>(values.data()), 4}).ok());
    EXPECT_TRUE(writer->complete());
  }
  EXPECT_TRUE(NamesIn(folder).empty()) << "an uncommitted writer leaves nothing";
}

TEST(CheckpointTest, SlicesOutsideThePlanAreRefused) {
  const v1::JobPlan plan = KnownPlan({{4}}, /*slots=*/false);
  auto writer = Create(TestFolder(), plan, 5);
  const std::vector<std::byte> bytes(20);
  auto write = [&](int chunk, int slot, int64_t offset, size_t count) {
    return writer->WriteSlice(chunk, slot, offset, absl::MakeSpan(bytes).first(count));
  };
  EXPECT_TRUE(absl::IsInvalidArgument(write(1, 0, 0, 4)));
  EXPECT_TRUE(absl::IsInvalidArgument(write(-1, 0, 0, 4)));
  EXPECT_TRUE(absl::IsInvalidArgument(write(0, 1, 0, 4)));
  EXPECT_TRUE(absl::IsInvalidArgument(write(0, 0, -4, 4)));
  EXPECT_TRUE(absl::IsInvalidArgument(write(0, 0, 0, 20)));
  EXPECT_TRUE(absl::IsInvalidArgument(write(0, 0, 13, 4)));
  EXPECT_TRUE(absl::IsInvalidArgument(write(0, 0, std::numeric_limits<int64_t>::max(), 4)));
  EXPECT_TRUE(write(0, 0, 12, 4).ok());
}

TEST(CheckpointTest, WriterNeedsAValidPlanAndASafeId) {
  const std::string folder = TestFolder();
  auto create = [&](const v1::JobPlan& plan, std::string id, int64_t step = 1) {
    return CheckpointWriter::Create(plan, {.directory = folder, .id = id, .step = step}).status();
  };
  for (const char* id : {"", "..", "a/b", "a.b", "a b"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(create(KnownPlan(), id))) << id;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(create(KnownPlan(), "a", -1)));
  EXPECT_TRUE(absl::IsInvalidArgument(create(v1::JobPlan(), "a")));

  v1::JobPlan hole = KnownPlan();
  hole.mutable_chunks(1)->set_offset(hole.chunks(1).offset() + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(create(hole, "a")));
  v1::JobPlan twice = KnownPlan();
  *twice.add_chunks() = twice.chunks(0);
  EXPECT_TRUE(absl::IsInvalidArgument(create(twice, "a")));
  v1::JobPlan stray = KnownPlan();
  stray.mutable_chunks(0)->set_parameter(99);
  EXPECT_TRUE(absl::IsInvalidArgument(create(stray, "a")));
  for (const char* name : {"", "p1", "__metadata__"}) {
    v1::JobPlan plan = KnownPlan();
    plan.mutable_graph()->mutable_parameters(0)->set_name(name);
    EXPECT_TRUE(absl::IsInvalidArgument(create(plan, "a"))) << name;
  }
  EXPECT_TRUE(NamesIn(folder).empty());
}

TEST(CheckpointTest, ReadsAnyRangeOfAnySlot) {
  const v1::JobPlan plan = KnownPlan();
  absl::StatusOr<v1::Checkpoint> committed = WriteKnownCheckpoint(TestFolder(), plan, 50, 1);
  ASSERT_TRUE(committed.ok()) << committed.status();
  auto reader = CheckpointReader::Open(committed->directory());
  ASSERT_TRUE(reader.ok()) << reader.status();

  std::vector<float> values(3);
  ASSERT_TRUE((*reader)->Read("p0", "v", 987, absl::MakeSpan(values)).ok());
  EXPECT_EQ(values[2], KnownValue(1, 2, 0, 989));

  EXPECT_TRUE(absl::IsInvalidArgument((*reader)->Read("p0", "", 988, absl::MakeSpan(values))));
  EXPECT_TRUE(absl::IsInvalidArgument((*reader)->Read("p0", "", -1, absl::MakeSpan(values))));
  EXPECT_TRUE(absl::IsNotFound((*reader)->Read("p9", "", 0, absl::MakeSpan(values))));
  EXPECT_TRUE(absl::IsNotFound((*reader)->Read("p0", "momentum", 0, absl::MakeSpan(values))));
}

TEST(CheckpointTest, MismatchWithTheModelNamesTheParameter) {
  const v1::JobPlan plan = KnownPlan();
  absl::StatusOr<v1::Checkpoint> committed = WriteKnownCheckpoint(TestFolder(), plan, 50, 1);
  ASSERT_TRUE(committed.ok()) << committed.status();
  auto reader = CheckpointReader::Open(committed->directory());
  ASSERT_TRUE(reader.ok()) << reader.status();

  EXPECT_TRUE((*reader)->CheckFits(plan.graph()).ok());
  absl::Status reshaped = (*reader)->CheckFits(KnownPlan({{33, 30}, {}, {17}}).graph());
  EXPECT_EQ(ReasonOf(reshaped), "CHECKPOINT_MISMATCH");
  EXPECT_TRUE(absl::StrContains(reshaped.message(), "'p0' is [30, 33], the model has [33, 30]"))
      << reshaped;
  absl::Status larger = (*reader)->CheckFits(KnownPlan({{30, 33}, {}, {17}, {1}}).graph());
  EXPECT_TRUE(absl::StrContains(larger.message(), "'p3' is missing")) << larger;
}

TEST(CheckpointTest, FolderThatIsNotACheckpointIsNotFound) {
  const std::string folder = TestFolder();
  EXPECT_TRUE(absl::IsNotFound(CheckpointReader::Open(folder + "/absent").status()));
  EXPECT_TRUE(absl::IsNotFound(CheckpointReader::Open(folder).status()));
  WriteWhole(folder + "/file", "text");
  EXPECT_TRUE(absl::IsNotFound(CheckpointReader::Open(folder + "/file").status()));
  EXPECT_TRUE(ListCheckpointSteps(folder + "/absent")->empty());
}

TEST(CheckpointTest, EveryBitFlipOfAFileIsFound) {
  const v1::JobPlan plan = KnownPlan({{3}, {}});
  absl::StatusOr<v1::Checkpoint> committed = WriteKnownCheckpoint(TestFolder(), plan, 50, 1);
  ASSERT_TRUE(committed.ok()) << committed.status();
  for (const v1::CheckpointFile& file : committed->files()) {
    const std::string path = absl::StrCat(committed->directory(), "/", file.name());
    const std::string content = ReadWhole(path);
    for (size_t byte = 0; byte < content.size(); ++byte) {
      std::string damaged = content;
      damaged[byte] ^= 1 << byte % 8;
      WriteWhole(path, damaged);

      absl::Status status = ReadKnownCheckpoint(committed->directory(), plan).status();

      ASSERT_TRUE(absl::IsDataLoss(status)) << "byte " << byte << ": " << status;
    }
    WriteWhole(path, content);
  }
  EXPECT_TRUE(ReadKnownCheckpoint(committed->directory(), plan).ok());
}

TEST(CheckpointTest, TruncatedAndMissingFilesAreNamedDataLoss) {
  const v1::JobPlan plan = KnownPlan({{3}, {}});
  absl::StatusOr<v1::Checkpoint> committed = WriteKnownCheckpoint(TestFolder(), plan, 50, 1);
  ASSERT_TRUE(committed.ok()) << committed.status();
  for (const v1::CheckpointFile& file : committed->files()) {
    const std::string path = absl::StrCat(committed->directory(), "/", file.name());
    const std::string content = ReadWhole(path);
    for (size_t bytes : {size_t{0}, size_t{7}, size_t{8}, size_t{60}, content.size() - 1}) {
      WriteWhole(path, content.substr(0, bytes));
      absl::Status status = CheckpointReader::Open(committed->directory()).status();
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_TRUE(absl::StrContains(status.message(),
                                    absl::StrCat(file.name(), ": ends at offset ", bytes)))
          << status;
    }
    std::filesystem::remove(path);
    absl::Status status = CheckpointReader::Open(committed->directory()).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), file.name())) << status;
    WriteWhole(path, content);
  }
}

TEST(PruneTest, KeepsTheNewestAndAtLeastOne) {
  const std::string folder = TestFolder();
  const v1::JobPlan plan = KnownPlan({{3}});
  for (int64_t step : {5, 30, 10, 20})
    ASSERT_TRUE(WriteKnownCheckpoint(folder, plan, step, 1).ok());

  EXPECT_EQ(PruneCheckpoints(folder, 0).steps, std::vector<int64_t>{});
  EXPECT_EQ(PruneCheckpoints(folder, 3).steps, std::vector<int64_t>{5});
  EXPECT_EQ(*ListCheckpointSteps(folder), (std::vector<int64_t>{10, 20, 30}));
  EXPECT_EQ(PruneCheckpoints(folder, 1, {10}).steps, std::vector<int64_t>{20}) << "10 is needed";
  EXPECT_EQ(PruneCheckpoints(folder, 1).steps, std::vector<int64_t>{10});
  EXPECT_EQ(PruneCheckpoints(folder, 1).steps, std::vector<int64_t>{});
  EXPECT_EQ(NamesIn(folder), std::vector<std::string>{"step-00000030"});
  EXPECT_TRUE(PruneCheckpoints(folder + "/absent", 1).status.ok());
}

TEST(PruneTest, SingleCheckpointCanBeRemoved) {
  const std::string folder = TestFolder();
  const v1::JobPlan plan = KnownPlan({{3}});
  for (int64_t step : {5, 10, 20}) ASSERT_TRUE(WriteKnownCheckpoint(folder, plan, step, 1).ok());

  EXPECT_TRUE(RemoveCheckpoint(folder, 10).ok());
  EXPECT_TRUE(absl::IsNotFound(RemoveCheckpoint(folder, 10)));
  EXPECT_EQ(NamesIn(folder), (std::vector<std::string>{"step-00000005", "step-00000020"}));
}

TEST(PruneTest, RemovesOnlyLeftoversOfDeadWriters) {
  const std::string folder = TestFolder();
  const v1::JobPlan plan = KnownPlan({{3}});
  ASSERT_TRUE(WriteKnownCheckpoint(folder, plan, 5, 1).ok());
  auto living = Create(folder, plan, 6);
  std::filesystem::create_directories(folder + "/step-00000004.tmp-test.1-0123456789abcdef");
  // no manifest: pruning must not touch it
  std::filesystem::create_directories(folder + "/step-00000007");
  WriteWhole(folder + "/notes.txt", "mine");

  ASSERT_TRUE(PruneCheckpoints(folder, 1).status.ok());

  EXPECT_EQ(NamesIn(folder),
            (std::vector<std::string>{"notes.txt", "step-00000005", TemporaryFolderName(6, "test"),
                                      "step-00000007"}));
  ASSERT_TRUE(WriteKnownSlices(*living, plan, 2).ok());
  EXPECT_TRUE(living->Commit().ok());
}

TEST(PruneTest, TwoParallelCallsRemoveEachCheckpointOnce) {
  const std::string folder = TestFolder();
  const v1::JobPlan plan = KnownPlan({{3}});
  constexpr int kSteps = 40;
  for (int step = 1; step <= kSteps; ++step) {
    ASSERT_TRUE(WriteKnownCheckpoint(folder, plan, step, 1).ok());
    const std::string left =
        absl::StrCat(folder, "/step-0000000", step % 10, ".tmp-", step, ".1-0");
    std::filesystem::create_directories(left);
    for (const char* file : {"a", "b", "c"}) WriteWhole(absl::StrCat(left, "/", file), file);
  }
  std::array<Pruned, 2> pruned;
  {
    std::latch both(2);
    std::vector<std::jthread> threads;
    for (Pruned& one : pruned) {
      threads.emplace_back([&] {
        both.arrive_and_wait();
        one = PruneCheckpoints(folder, 1);
      });
    }
  }

  for (const Pruned& one : pruned) EXPECT_TRUE(one.status.ok()) << one.status;
  EXPECT_EQ(pruned[0].steps.size() + pruned[1].steps.size(), kSteps - 1);
  EXPECT_EQ(NamesIn(folder), std::vector<std::string>{"step-00000040"});
}

TEST(PruneTest, OpenCheckpointCanBeReadToItsEndAfterPruning) {
  const std::string folder = TestFolder();
  const v1::JobPlan plan = KnownPlan({{3}});
  ASSERT_TRUE(WriteKnownCheckpoint(folder, plan, 5, 1).ok());
  ASSERT_TRUE(WriteKnownCheckpoint(folder, plan, 6, 1).ok());
  auto reader = CheckpointReader::Open(CheckpointPath(folder, 5));
  ASSERT_TRUE(reader.ok());

  ASSERT_EQ(PruneCheckpoints(folder, 1).steps, std::vector<int64_t>{5});

  std::vector<float> values(3);
  EXPECT_TRUE((*reader)->Read("p0", "", 0, absl::MakeSpan(values)).ok());
  EXPECT_TRUE((*reader)->Verify().ok());
}

TEST(CheckpointTest, PythonLibraryReadsIt) {
  if (std::system("python3 -c 'import safetensors.numpy' 2>/dev/null") != 0) {
    GTEST_SKIP() << "needs python3 with the packages safetensors and numpy";
  }
  absl::StatusOr<v1::Checkpoint> committed = WriteKnownCheckpoint(TestFolder(), KnownPlan(), 50, 1);
  ASSERT_TRUE(committed.ok()) << committed.status();
  const std::string script = absl::StrCat(committed->directory(), "/read.py");
  WriteWhole(script, R"(
import sys, numpy
from safetensors import safe_open
folder = sys.argv[1]
for kind, slots in [("model", [""]), ("optimizer", [".m", ".v"])]:
    with safe_open(f"{folder}/{kind}-00001-of-00001.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt", "job": "known", "step": "50"}, file.metadata()
        shapes = [(30, 33), (), (17,)]
        assert len(file.keys()) == len(slots) * len(shapes), file.keys()
        for parameter, shape in enumerate(shapes):
            for index, slot in enumerate(slots):
                number = index + (1 if slot else 0)
                tensor = file.get_tensor(f"p{parameter}{slot}")
                assert tensor.dtype == numpy.float32 and tensor.shape == shape, tensor
                expected = 1e6 + number * 1e5 + parameter * 1e4 + numpy.arange(tensor.size)
                assert (tensor.reshape(-1) == expected.astype(numpy.float32)).all(), tensor
)");
  EXPECT_EQ(std::system(absl::StrCat("python3 ", script, " ", committed->directory()).c_str()), 0);
}

// A checkpoint below `root` with bytes that another process writes.
class SharedCheckpointTest : public testing::Test {
 protected:
  static constexpr int64_t kStep = 50;

  std::unique_ptr<CheckpointWriter> CreateShared() {
    auto writer = CheckpointWriter::Create(plan_, {.directory = root_ + "/known-1/checkpoints",
                                                   .id = "a",
                                                   .step = kStep,
                                                   .total_steps = 100,
                                                   .shared = true});
    EXPECT_TRUE(writer.ok()) << writer.status();
    return *std::move(writer);
  }
  v1::WriteShardDirectResponse LayoutOf(const CheckpointWriter& writer) const {
    v1::WriteShardDirectResponse layout;
    layout.set_jobs_folder("/state/jobs");
    layout.set_folder(writer.temporary().substr(root_.size() + 1));
    for (const auto& file : writer.Files()) {
      layout.add_files()->set_name(file.name);
      layout.mutable_files()->rbegin()->set_size_bytes(file.bytes);
    }
    return layout;
  }
  absl::StatusOr<SharedFiles> Open(const v1::WriteShardDirectResponse& layout) const {
    return SharedFiles::Open({.root = root_, .job = "known-1", .step = kStep}, layout);
  }
  // Writes every chunk and slot of edition 1, as a member does.
  void WriteAll(CheckpointWriter& writer, SharedFiles& files) {
    for (int chunk = 0; chunk < plan_.chunks_size(); ++chunk) {
      for (int slot = 0; slot < 3; ++slot) {
        std::vector<float> values;
        for (int64_t i = 0; i < plan_.chunks(chunk).elements(); ++i) {
          values.push_back(KnownValue(1, slot, plan_.chunks(chunk).parameter(),
                                      plan_.chunks(chunk).offset() + i));
        }
        const auto bytes = std::as_bytes(std::span(values));
        const CheckpointWriter::Place place = writer.PlaceOf(chunk, slot);
        ASSERT_TRUE(files.WriteAt(place.file, place.offset_bytes, bytes).ok());
        ASSERT_TRUE(writer.SliceWritten(chunk, slot, 0, std::ssize(bytes), Crc32c(bytes)).ok());
      }
    }
    ASSERT_TRUE(files.Sync().ok());
    EXPECT_EQ(files.unsynced_bytes(), 0);
  }

  const v1::JobPlan plan_ = KnownPlan();
  const std::string root_ = TestFolder();
};

TEST_F(SharedCheckpointTest, HasTheSameBytesWhicheverProcessWritesThem) {
  auto writer = CreateShared();
  {
    auto files = Open(LayoutOf(*writer));
    ASSERT_TRUE(files.ok()) << files.status();
    WriteAll(*writer, *files);
  }
  const auto written = writer->Commit();
  ASSERT_TRUE(written.ok()) << written.status();
  const auto sent = WriteKnownCheckpoint(root_ + "/sent", plan_, kStep, 1);

  ASSERT_EQ(written->files_size(), sent->files_size());
  for (int i = 0; i < sent->files_size(); ++i) {
    EXPECT_EQ(written->files(i).sha256(), sent->files(i).sha256());
  }
  EXPECT_EQ(*ReadKnownCheckpoint(written->directory(), plan_), 1);
  EXPECT_EQ(NamesIn(written->directory()), NamesIn(sent->directory())) << "no other files";
}

TEST_F(SharedCheckpointTest, SomeSlicesMayBeSentAndOthersWritten) {
  auto writer = CreateShared();
  auto files = Open(LayoutOf(*writer));
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_TRUE(WriteKnownSlices(*writer, plan_, 1).ok());  // with other cuts
  WriteAll(*writer, *files);

  const auto committed = writer->Commit();

  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_EQ(*ReadKnownCheckpoint(committed->directory(), plan_), 1);
}

TEST_F(SharedCheckpointTest, CommitFailsIfAFileDiffersFromItsAnnouncedSlices) {
  const auto before = WriteKnownCheckpoint(root_ + "/known-1/checkpoints", plan_, 40, 2);
  ASSERT_TRUE(before.ok()) << before.status();
  auto writer = CreateShared();
  auto files = Open(LayoutOf(*writer));
  ASSERT_TRUE(files.ok()) << files.status();
  WriteAll(*writer, *files);
  const float late = 7;  // a lost byte, or another process that still writes
  ASSERT_TRUE(
      files->WriteAt(1, writer->PlaceOf(0, 2).offset_bytes, std::as_bytes(std::span(&late, 1)))
          .ok());

  const absl::Status refused = writer->Commit().status();

  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_EQ(ReasonOf(refused), "DIRECT_MISMATCH");
  EXPECT_TRUE(absl::StrContains(refused.message(), "optimizer-00001-of-00001.safetensors"))
      << refused;
  writer.reset();
  EXPECT_EQ(NamesIn(root_ + "/known-1/checkpoints"), (std::vector<std::string>{"step-00000040"}));
  EXPECT_EQ(*ReadKnownCheckpoint(before->directory(), plan_), 2);
  EXPECT_TRUE(files->WriteAt(0, 0, std::as_bytes(std::span(&late, 1))).ok())
      << "a late write does no harm";
  EXPECT_EQ(*ReadKnownCheckpoint(before->directory(), plan_), 2);
}

TEST_F(SharedCheckpointTest, OverwrittenHeaderIsNoticed) {
  auto writer = CreateShared();
  auto files = Open(LayoutOf(*writer));
  ASSERT_TRUE(files.ok()) << files.status();
  WriteAll(*writer, *files);
  ASSERT_TRUE(files->WriteAt(0, 20, std::as_bytes(std::span("x", 1))).ok());

  EXPECT_EQ(ReasonOf(writer->Commit().status()), "DIRECT_MISMATCH");
}

// A member writes, whatever a coordinator says, only to data files, in that step's temporary
// folder, below its own root.
TEST_F(SharedCheckpointTest, NoOtherFileIsEverOpened) {
  namespace fs = std::filesystem;
  auto writer = CreateShared();
  const v1::WriteShardDirectResponse good = LayoutOf(*writer);
  ASSERT_TRUE(Open(good).ok());
  const std::string temporary = writer->temporary(), outside = root_ + "-outside",
                    name = good.files(0).name();
  fs::remove_all(outside);
  fs::create_directories(outside);

  for (const std::string& folder :
       {std::string("known-1/checkpoints/step-00000050"), "known-1/checkpoints/../" + good.folder(),
        "/" + good.folder(), "../" + good.folder(),
        "known-2/checkpoints/" + good.folder().substr(20), std::string("known-1/checkpoints"),
        "known-1/checkpoints/step-00000051" + good.folder().substr(33), std::string("")}) {
    v1::WriteShardDirectResponse layout = good;
    layout.set_folder(folder);
    EXPECT_TRUE(absl::IsInvalidArgument(Open(layout).status())) << folder;
  }
  for (const char* file : {"manifest.json", "../../x", "model-00001-of-00001.safetensors/x", ""}) {
    v1::WriteShardDirectResponse layout = good;
    layout.mutable_files(0)->set_name(file);
    EXPECT_TRUE(absl::IsInvalidArgument(Open(layout).status())) << file;
  }
  v1::WriteShardDirectResponse longer = good;
  longer.mutable_files(0)->set_size_bytes(good.files(0).size_bytes() + 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(longer).status())) << Open(longer).status();

  fs::create_hard_link(temporary + "/" + name, outside + "/second_name");
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(good).status())) << Open(good).status();
  // the same file under another name: nothing changes
  fs::rename(outside + "/second_name", temporary + "/" + name);
  fs::remove(outside + "/second_name");
  ASSERT_TRUE(Open(good).ok()) << Open(good).status();

  fs::rename(temporary + "/" + name, outside + "/file");
  fs::create_symlink(outside + "/file", temporary + "/" + name);
  EXPECT_FALSE(Open(good).ok()) << "a link to a file";
  fs::remove(temporary + "/" + name);
  ASSERT_EQ(mkfifo((temporary + "/" + name).c_str(), 0600), 0);
  EXPECT_FALSE(Open(good).ok()) << "a pipe";
  fs::remove(temporary + "/" + name);
  fs::rename(outside + "/file", temporary + "/" + name);
  fs::rename(root_ + "/known-1", outside + "/known-1");
  fs::create_symlink(outside + "/known-1", root_ + "/known-1");
  EXPECT_FALSE(Open(good).ok()) << "a link to a folder";
  fs::remove(root_ + "/known-1");

  const absl::Status gone = Open(good).status();
  EXPECT_TRUE(absl::StrContains(gone.message(), absl::StrCat(root_, "/known-1"))) << gone;
  EXPECT_TRUE(absl::StrContains(gone.message(), "the path here of the coordinator's /state/jobs"))
      << gone;
  fs::rename(outside + "/known-1", root_ + "/known-1");
}

}  // namespace
}  // namespace muster::checkpoint_test
