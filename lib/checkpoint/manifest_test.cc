#include "lib/checkpoint/manifest.h"

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/checkpoint_layout.h"
#include "lib/checkpoint/disk_file.h"
#include "lib/limits/limits.h"
#include "nlohmann/json.hpp"

namespace muster::manifest_test {
namespace {

Manifest KnownManifest() {
  Manifest manifest;
  manifest.job = "char-gpt-7";
  manifest.step = 1000;
  manifest.total_steps = 2000;
  manifest.spec.set_name("char-gpt");
  manifest.spec.mutable_data()->set_batch_size(16);
  manifest.spec.mutable_data()->mutable_text()->set_holdout(0.1);
  manifest.spec.mutable_training()->mutable_optimizer()->mutable_adamw()->set_learning_rate(3e-3);
  manifest.spec.mutable_training()->set_seed(0xffffffffffffffff);
  manifest.slots = {"m", "v"};
  manifest.create_time_unix_millis = 1700000000123;
  v1::CheckpointFile& file = manifest.files.emplace_back();
  file.set_name("model-00001-of-00001.safetensors");
  file.set_size_bytes(1234);
  file.set_sha256(std::string(64, 'a'));
  return manifest;
}

TEST(ManifestTest, SurvivesTheConversionToJsonAndBack) {
  const Manifest manifest = KnownManifest();

  absl::StatusOr<Manifest> read = Manifest::FromJson(*manifest.ToJson(), "manifest.json");

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->job, manifest.job);
  EXPECT_EQ(read->step, manifest.step);
  EXPECT_EQ(read->total_steps, manifest.total_steps);
  EXPECT_EQ(read->slots, manifest.slots);
  EXPECT_EQ(read->create_time_unix_millis, manifest.create_time_unix_millis);
  EXPECT_EQ(read->spec.SerializeAsString(), manifest.spec.SerializeAsString());
  ASSERT_EQ(read->files.size(), 1);
  EXPECT_EQ(read->files[0].SerializeAsString(), manifest.files[0].SerializeAsString());
  EXPECT_EQ(*read->ToJson(), *manifest.ToJson());
}

TEST(ManifestTest, ContainsTheUpdateStateIfTheJobHasOne) {
  Manifest manifest = KnownManifest();
  EXPECT_FALSE(Manifest::FromJson(*manifest.ToJson(), "manifest.json")->update_state.has_value());
  manifest.update_state.emplace();
  manifest.update_state->set_updates(990);
  manifest.update_state->set_loss_scale(32768);
  manifest.update_state->set_clean_steps(17);

  absl::StatusOr<Manifest> read = Manifest::FromJson(*manifest.ToJson(), "manifest.json");

  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_TRUE(read->update_state.has_value());
  EXPECT_EQ(read->update_state->SerializeAsString(), manifest.update_state->SerializeAsString());
  manifest.update_state->set_updates(int64_t{1000} * limits::kWorkersMax + 1);
  EXPECT_TRUE(absl::IsDataLoss(Manifest::FromJson(*manifest.ToJson(), "manifest.json").status()));
}

TEST(ManifestTest, ContainsTheFingerprintOfTheDataIfItIsKnown) {
  Manifest manifest = KnownManifest();
  EXPECT_EQ(manifest.ToJson()->find("data_fingerprint"), std::string::npos);
  EXPECT_EQ(Manifest::FromJson(*manifest.ToJson(), "manifest.json")->data_fingerprint, "");
  manifest.data_fingerprint = "12ab";
  EXPECT_EQ(Manifest::FromJson(*manifest.ToJson(), "manifest.json")->data_fingerprint, "12ab");
}

TEST(ManifestTest, SpecThatCannotBeWrittenAsJsonIsAnError) {
  Manifest manifest = KnownManifest();
  manifest.spec.mutable_start_timeout()->set_nanos(2'000'000'000);

  const absl::Status status = manifest.ToJson().status();

  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "cannot be written as JSON")) << status;
}

TEST(ManifestTest, NoSingleBitFlipChangesWhatIsRead) {
  const std::string json = *KnownManifest().ToJson();
  for (size_t byte = 0; byte < json.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = json;
      damaged[byte] ^= 1 << bit;

      absl::StatusOr<Manifest> read = Manifest::FromJson(damaged, "manifest.json");

      if (read.ok()) {
        EXPECT_EQ(*read->ToJson(), json) << "byte " << byte << " bit " << bit;
      } else {
        EXPECT_TRUE(absl::IsDataLoss(read.status())) << read.status();
        EXPECT_TRUE(absl::StartsWith(read.status().message(), "manifest.json: ")) << read.status();
      }
    }
  }
}

TEST(ManifestTest, EveryTruncationIsDataLoss) {
  const std::string json = *KnownManifest().ToJson();
  for (size_t bytes = 0; bytes + 2 < json.size(); ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(Manifest::FromJson(json.substr(0, bytes), "m").status())) << bytes;
  }
}

TEST(ManifestTest, NewerFormatAsksForANewerMuster) {
  nlohmann::json json = nlohmann::json::parse(*KnownManifest().ToJson());
  json["format_version"] = 2;
  EXPECT_TRUE(absl::IsDataLoss(Manifest::FromJson(json.dump(), "m").status()))
      << "a greater version with a wrong checksum is damage";
  json.erase("manifest_sha256");
  json["manifest_sha256"] = Sha256Of(json.dump());

  absl::Status status = Manifest::FromJson(json.dump(), "m").status();

  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "newer")) << status;
}

TEST(ManifestTest, MoreSamplesThanCanBeCountedAreDataLoss) {
  nlohmann::json json = nlohmann::json::parse(*KnownManifest().ToJson());
  json["step"] = int64_t{1} << 62;
  json.erase("manifest_sha256");
  json["manifest_sha256"] = Sha256Of(json.dump());

  absl::Status status = Manifest::FromJson(json.dump(), "m").status();

  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "m: 'step' batches")) << status;
}

TEST(ManifestTest, FileNamesCannotLeaveTheFolder) {
  for (std::string name :
       {"../model-00001-of-00001.safetensors", "/etc/passwd", "", "manifest.json",
        "model-00001-of-00001.safetensors/x", "model-1-of-1.safetensors"}) {
    Manifest manifest = KnownManifest();
    manifest.files[0].set_name(name);

    absl::Status status = Manifest::FromJson(*manifest.ToJson(), "m").status();

    EXPECT_TRUE(absl::IsDataLoss(status)) << name;
    EXPECT_TRUE(absl::StrContains(status.message(), "files.name")) << status;
  }
}

TEST(ManifestTest, InvalidTextThrowsNothing) {
  const std::string deep(100000, '[');
  for (std::string text :
       {std::string("null"), std::string("[]"), std::string("{}"),
        std::string("{\"format_version\":-1}"), std::string("{\"format_version\":1e300}"),
        std::string("{\"a\":1,\"a\":2}"), deep, std::string("\xff\xfe"), std::string(1, '\0')}) {
    EXPECT_TRUE(absl::IsDataLoss(Manifest::FromJson(text, "m").status())) << text.substr(0, 40);
  }
}

TEST(StepFolderNameTest, OnlyTheExactSpellingIsParsed) {
  EXPECT_EQ(StepFolderName(1000), "step-00001000");
  EXPECT_EQ(ParseStepFolderName("step-00001000"), 1000);
  EXPECT_EQ(ParseStepFolderName(StepFolderName(123456789012)), 123456789012);
  for (const char* name :
       {"step-1000", "step-000001000", "step--0000001", "step-+0001000", "step- 0001000", "step-",
        "step-00001000.tmp-a", "x", "", "step-99999999999999999999"}) {
    EXPECT_EQ(ParseStepFolderName(name), std::nullopt) << name;
  }
  EXPECT_TRUE(IsTemporaryFolderOfThisProcess(TemporaryFolderName(3, "a")));
  EXPECT_TRUE(IsTemporaryFolderName("step-00001000.tmp-a"));
  EXPECT_FALSE(IsTemporaryFolderOfThisProcess("step-00001000.tmp-a.1-0123456789abcdef"));
  EXPECT_FALSE(IsTemporaryFolderName("notes.tmp-a"));
  const std::string name = TemporaryFolderName(3, "a-1");
  EXPECT_EQ(ParseTemporaryFolderName(name)->step, 3);
  EXPECT_EQ(ParseTemporaryFolderName(name)->id, "a-1");
  EXPECT_EQ(ParseTemporaryFolderName("step-00001000.tmp-a")->id, "a");
  EXPECT_FALSE(ParseTemporaryFolderName("step-00001000.damaged"));
}

}  // namespace
}  // namespace muster::manifest_test
