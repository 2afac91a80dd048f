// The checks of `data:` that concern decoded sources, orders and mixtures.
#include "lib/job/data_check.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/job/job_file.h"
#include "lib/job/job_validation.h"
#include "lib/status/field_fault.h"

namespace muster::data_check_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns the faults of a job with this `data:`, written as in a job file, as "field: description".
std::vector<std::string> FaultsOfData(const std::string& data) {
  const auto spec =
      ParseJobFile(absl::StrCat("name: a\nmodel: {zoo: {name: linear}}\n"
                                "training: {steps: 1, optimizer: {sgd: {learning_rate: 0.1}}}\n"
                                "resources: {workers: {min: 1, max: 4}}\ndata: ",
                                data, "\n"),
                   "job.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  std::vector<std::string> faults;
  if (!spec.ok()) return faults;
  for (const FieldFault& fault : ValidateJobSpec(*spec)) {
    faults.push_back(absl::StrCat(fault.field, ": ", fault.description));
  }
  return faults;
}

TEST(DataCheckTest, AcceptsEachSource) {
  for (const char* data : {
           "{images: {path: a}, image: {mean: [0.5], std: [1]}, batch_size: 32}",
           "{images: {list: a.txt, eval_list: b.txt}, image: {train: [{resize: {size: 8}}]}, "
           "batch_size: 32}",
           "{tfrecord: {path: 'a/*.tfrecord', holdout: 0.1, inputs: {x: {fixed: {}}, y: {scatter: "
           "{positions: p, values: v}}}}, batch_size: 32, last_batch: continue, damaged_max: 3}",
           "{tar: {path: 'a-{000..146}.tar', inputs: {input: {extension: jpg;seg.png, image: {}}, "
           "target: {extension: json, json: {field: a.b}}}}, image: {}, batch_size: 32}",
           "{npz: {path: a.npz, inputs: {x: images}}, batch_size: 32, memory_bytes: 1000}",
           "{csv: {path: a.csv, separator: ';', inputs: {x: {columns: [a, '3-15'], number: {}}, y: "
           "{columns: [c], hash: {buckets: 10}}}}, batch_size: 32, shuffle: {none: {}}}",
           "{mixture: {parts: [{weight: 3, data: {text: {path: a}}}, {weight: 0.5, data: {images: "
           "{path: b}, image: {}}}]}, batch_size: 32, shuffle: {none: {}}}",
       }) {
    EXPECT_THAT(FaultsOfData(data), IsEmpty()) << data;
  }
}

TEST(DataCheckTest, NamesAllSourcesIfThereIsNone) {
  EXPECT_THAT(FaultsOfData("{batch_size: 32}"),
              ElementsAre("data: required: one of text, idx, linear, npy, synthetic, external, "
                          "images, tfrecord, tar, npz, csv, mixture"));
}

TEST(DataCheckTest, RequiresPathsAndInputs) {
  EXPECT_THAT(
      FaultsOfData("{images: {}, image: {}, batch_size: 32}"),
      ElementsAre(HasSubstr("data.images.path: required: a folder with a folder of images")));
  EXPECT_THAT(FaultsOfData("{tfrecord: {}, batch_size: 32}"),
              ElementsAre(HasSubstr("data.tfrecord.path: required"),
                          HasSubstr("data.tfrecord.inputs: required")));
  EXPECT_THAT(
      FaultsOfData("{tar: {}, batch_size: 32}"),
      ElementsAre(HasSubstr("data.tar.path: required"), HasSubstr("data.tar.inputs: required")));
  EXPECT_THAT(FaultsOfData("{npz: {inputs: {x: ''}}, batch_size: 32}"),
              ElementsAre(HasSubstr("data.npz.path: required"),
                          HasSubstr("data.npz.inputs.x: required: the name of an array")));
  EXPECT_THAT(FaultsOfData("{csv: {inputs: {x: {number: {}}}}, batch_size: 32}"),
              ElementsAre(HasSubstr("data.csv.path: required"),
                          HasSubstr("data.csv.inputs.x.columns: required")));
}

TEST(DataCheckTest, RequiresHowEachInputIsFilled) {
  EXPECT_THAT(
      FaultsOfData("{tfrecord: {path: a, inputs: {x: {}, y: {scatter: {values: v}}}}, "
                   "batch_size: 32}"),
      ElementsAre("data.tfrecord.inputs.x: required: one of fixed, variable, image, scatter",
                  HasSubstr("data.tfrecord.inputs.y.scatter.positions: required")));
  EXPECT_THAT(FaultsOfData("{tar: {path: a, inputs: {w: {extension: .jpg, array: {}}, x: {}, y: "
                           "{extension: json, json: {}}}}, batch_size: 32}"),
              ElementsAre(HasSubstr("data.tar.inputs.w.extension: must be what follows"),
                          HasSubstr("data.tar.inputs.x.extension: required"),
                          "data.tar.inputs.x: required: one of image, integer, array, json",
                          HasSubstr("data.tar.inputs.y.json.field: required")));
  EXPECT_THAT(
      FaultsOfData("{csv: {path: a, separator: ab, criteo: true, header: true, inputs: {w: "
                   "{columns: [a]}, x: {columns: [''], hash: {}}, y: {columns: [b], vocabulary: "
                   "{unknown: -1}}}}, batch_size: 32}"),
      ElementsAre(HasSubstr("data.csv.separator: must be one byte"),
                  HasSubstr("data.csv.header: not together with criteo"),
                  "data.csv.inputs.w: required: one of number, hash, vocabulary",
                  HasSubstr("data.csv.inputs.x.columns[0]: required"),
                  HasSubstr("data.csv.inputs.x.hash.buckets: must be between 1 and 2147483647"),
                  HasSubstr("data.csv.inputs.y.vocabulary.path: required"),
                  HasSubstr("data.csv.inputs.y.vocabulary.unknown: must be between 0")));
}

TEST(DataCheckTest, HeldOutSamplesAreAShareOrFiles) {
  for (const std::string source : {"tfrecord", "tar", "csv"}) {
    const auto faults = FaultsOfData(
        absl::StrCat("{", source, ": {path: a, eval_path: b, holdout: 0.1, inputs: {x: {",
                     source == "tfrecord" ? "fixed: {}"
                     : source == "tar"    ? "extension: a, integer: {}"
                                          : "columns: [a], number: {}",
                     "}}}, batch_size: 32}"));
    EXPECT_THAT(faults, ElementsAre(HasSubstr(absl::StrCat(
                            "data.", source, ".holdout: not together with eval_path"))));
  }
  EXPECT_THAT(FaultsOfData("{images: {path: a, eval_list: b, holdout: 0.6}, image: {}, "
                           "batch_size: 32}"),
              ElementsAre(HasSubstr("data.images.holdout: must be between"),
                          HasSubstr("data.images.holdout: not together with eval_list")));
}

TEST(DataCheckTest, ImageGoesWithSourcesThatDecodeImages) {
  EXPECT_THAT(FaultsOfData("{images: {path: a}, batch_size: 32}"),
              ElementsAre(HasSubstr("data.image: required: how images become rows")));
  EXPECT_THAT(FaultsOfData("{tar: {path: a, inputs: {x: {extension: jpg, image: {}}}}, "
                           "batch_size: 32}"),
              ElementsAre(HasSubstr("data.image: required")));
  EXPECT_THAT(FaultsOfData("{text: {path: a}, image: {}, batch_size: 32}"),
              ElementsAre(HasSubstr("data.image: only with images, and with tfrecord or tar")));
  EXPECT_THAT(
      FaultsOfData("{images: {path: a}, image: {mean: [0, 0], std: [1]}, batch_size: 32}"),
      ElementsAre("data.image.mean: must have a value for each channel, so 1 or 3 (has 2)"));
  EXPECT_THAT(FaultsOfData("{images: {path: a}, image: {mean: [0, 1, 0], std: [0]}, "
                           "batch_size: 32}"),
              ElementsAre("data.image.std: must have as many values as mean (has 1, mean 3)",
                          HasSubstr("data.image.std[0]: must be greater than 0")));
  EXPECT_THAT(FaultsOfData("{images: {path: a}, image: {mean: [0.4, 103.5, 1], std: [58, 1, 0.2]}, "
                           "batch_size: 32}"),
              ElementsAre("data.image.mean[1]: must be at most 1, because pixels are 0 to 1 (is "
                          "103.5); divide a value for 0 to 255 by 255",
                          HasSubstr("data.image.std[0]: must be at most 10")));
  EXPECT_THAT(FaultsOfData("{images: {path: a}, image: {train: [{}]}, batch_size: 32}"),
              ElementsAre(HasSubstr("data.image.train[0]: required: one of resize, ")));
}

TEST(DataCheckTest, BlocksHaveLanesThatDivideTheBatch) {
  const auto faults_of = [](const std::string& block) {
    return FaultsOfData(
        absl::StrCat("{text: {path: a}, batch_size: 48, shuffle: {block: ", block, "}}"));
  };
  EXPECT_THAT(faults_of("{samples: 100, window_blocks: 4096, lanes: 16}"), IsEmpty());
  for (const int lanes : {-4, 3, 32, 6}) {
    EXPECT_THAT(
        faults_of(absl::StrCat("{lanes: ", lanes, "}")),
        ElementsAre(absl::StrCat("data.shuffle.block.lanes: must be a power of two that divides "
                                 "data.batch_size = 48 (is ",
                                 lanes, ")")));
  }
  EXPECT_THAT(
      faults_of("{samples: -1, window_blocks: 4097}"),
      ElementsAre(HasSubstr("data.shuffle.block.samples: must be between 0 and"),
                  HasSubstr("data.shuffle.block.window_blocks: must be between 0 and 4096")));
  EXPECT_THAT(FaultsOfData("{text: {path: a}, batch_size: 48, shuffle: {}}"),
              ElementsAre("data.shuffle: required: one of full: {}, block: {}, none: {}"));
}

TEST(DataCheckTest, BoundsAreNotNegative) {
  EXPECT_THAT(FaultsOfData("{text: {path: a}, batch_size: 32, damaged_max: -1, memory_bytes: -1}"),
              ElementsAre(HasSubstr("data.damaged_max: must be at least 0 (is -1)"),
                          HasSubstr("data.memory_bytes: must be at least 0 (is -1)")));
}

TEST(DataCheckTest, PartsOfAMixtureAreSourcesWithAWeight) {
  const auto faults_of = [](const std::string& part) {
    return FaultsOfData(absl::StrCat("{mixture: {parts: [{weight: 1, data: {text: {path: a}}}, ",
                                     part, "]}, batch_size: 32}"));
  };
  EXPECT_THAT(FaultsOfData("{mixture: {parts: [{weight: 1, data: {text: {path: a}}}]}, "
                           "batch_size: 32}"),
              ElementsAre(HasSubstr("data.mixture.parts: must be between 2 and 64 (is 1)")));
  for (const char* weight : {"0", "-1"}) {
    EXPECT_THAT(faults_of(absl::StrCat("{weight: ", weight, ", data: {text: {path: a}}}")),
                ElementsAre(HasSubstr("data.mixture.parts[1].weight: must be greater than 0")));
  }
  for (const char* data : {"{}", "{external: {}}", "{mixture: {parts: []}}"}) {
    EXPECT_THAT(faults_of(absl::StrCat("{weight: 1, data: ", data, "}")),
                ElementsAre("data.mixture.parts[1].data: required: one of text, idx, linear, npy, "
                            "synthetic, images, tfrecord, tar, npz, csv"));
  }
  EXPECT_THAT(
      faults_of("{weight: 1, data: {text: {path: a}, batch_size: 8, seed: 1, last_batch: "
                "drop, shuffle: {full: {}}, damaged_max: 1, memory_bytes: 1}}"),
      ElementsAre(HasSubstr("parts[1].data.batch_size: holds for the whole mixture"),
                  HasSubstr("parts[1].data.seed: "), HasSubstr("parts[1].data.last_batch: "),
                  HasSubstr("parts[1].data.shuffle: "), HasSubstr("parts[1].data.damaged_max: "),
                  HasSubstr("parts[1].data.memory_bytes: ")));
  EXPECT_THAT(faults_of("{weight: 1, data: {images: {}, image: {std: [0]}}}"),
              ElementsAre(HasSubstr("data.mixture.parts[1].data.images.path: required"),
                          HasSubstr("data.mixture.parts[1].data.image.std[0]: must be greater")));
}

TEST(DataCheckTest, RefusesMixturesThatNoWorkerCanOrder) {
  const auto faults_of = [](const std::string& weight, const std::string& shuffle) {
    return FaultsOfData(absl::StrCat(
        "{mixture: {parts: [{weight: 1, data: {text: {path: a}}}, {weight: ", weight,
        ", data: {text: {path: b}}}]}, batch_size: 32, shuffle: {", shuffle, ": {}}}"));
  };
  EXPECT_THAT(faults_of("2e-5", "full"), IsEmpty());
  EXPECT_THAT(
      faults_of("1e-6", "full"),
      ElementsAre("data.mixture.parts[1].weight: must be at least 1/65536 of the sum of all "
                  "weights (is 1e-06)"));
  EXPECT_THAT(faults_of("1", "block"),
              ElementsAre("data.shuffle.block: not with data.mixture; use full: {} or none: {}"));
}

TEST(DataCheckTest, DefaultsFixWhatTheOrderAndThePixelsDependOn) {
  const auto lanes = [](int64_t batch, int workers, int logical = 0) {
    v1::JobSpec spec;
    spec.mutable_data()->set_batch_size(batch);
    spec.mutable_data()->mutable_shuffle()->mutable_block();
    spec.mutable_resources()->mutable_workers()->set_max(workers);
    spec.mutable_resources()->mutable_workers()->set_logical(logical);
    FillDefaults(spec);
    EXPECT_EQ(spec.data().shuffle().block().window_blocks(), 16);
    return spec.data().shuffle().block().lanes();
  };
  EXPECT_EQ(lanes(256, 0), 1) << "one worker is the default";
  EXPECT_EQ(lanes(256, 4), 4);
  EXPECT_EQ(lanes(256, 3), 8) << "twice as many as 4";
  EXPECT_EQ(lanes(256, 5), 16);
  EXPECT_EQ(lanes(12, 5), 4) << "8 does not divide the batch";
  EXPECT_EQ(lanes(7, 5), 1);
  for (const int most : {1, 3, 8}) EXPECT_EQ(lanes(256, most, /*logical=*/8), 8) << most;

  v1::JobSpec spec;
  v1::DataSpec& part = *spec.mutable_data()->mutable_mixture()->add_parts()->mutable_data();
  for (v1::DataSpec* data : {&part, spec.mutable_data()}) {
    data->mutable_image()->add_train()->mutable_random_resized_crop();
    data->mutable_image()->add_train()->mutable_rand_augment();
    data->mutable_image()->add_evaluate()->mutable_resize()->set_interpolation(
        v1::INTERPOLATION_BICUBIC);
  }
  FillDefaults(spec);
  for (const v1::DataSpec* data : {&std::as_const(part), &spec.data()}) {
    const v1::ImageSpec& image = data->image();
    EXPECT_EQ(image.train(0).random_resized_crop().interpolation(), v1::INTERPOLATION_BILINEAR);
    EXPECT_EQ(image.train(1).rand_augment().interpolation(), v1::INTERPOLATION_NEAREST);
    EXPECT_EQ(image.evaluate(0).resize().interpolation(), v1::INTERPOLATION_BICUBIC);
    EXPECT_EQ(image.decode(), v1::IMAGE_DECODE_EXACT);
  }
}

// JSON clients can send numbers that job files cannot hold.
TEST(DataCheckTest, NumbersAreFinite) {
  v1::JobSpec spec;
  v1::DataSpec& data = *spec.mutable_data();
  for (int i = 0; i < 2; ++i) {
    v1::MixturePart& part = *data.mutable_mixture()->add_parts();
    part.set_weight(HUGE_VAL);
    part.mutable_data()->mutable_images()->set_path("a");
    part.mutable_data()->mutable_image()->add_mean(NAN);
  }
  std::vector<std::string> fields;
  for (const FieldFault& fault : ValidateJobSpec(spec)) fields.push_back(fault.field);
  EXPECT_THAT(fields, ::testing::IsSupersetOf({"data.mixture.parts[0].weight",
                                               "data.mixture.parts[1].data.image.mean[0]"}));
}

}  // namespace
}  // namespace muster::data_check_test
