// The builders of the zoo, one for each family of models. They do not check the resulting graph.
#pragma once

#include "absl/status/statusor.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::zoo {

absl::StatusOr<v1::Graph> BuildLinear(const v1::ZooModel& model);
absl::StatusOr<v1::Graph> BuildMlp(const v1::ZooModel& model);
absl::StatusOr<v1::Graph> BuildLenet(const v1::ZooModel& model);
absl::StatusOr<v1::Graph> BuildVgg16(const v1::ZooModel& model);
absl::StatusOr<v1::Graph> BuildResnet50(const v1::ZooModel& model);
absl::StatusOr<v1::Graph> BuildResnet101(const v1::ZooModel& model);
absl::StatusOr<v1::Graph> BuildInceptionV3(const v1::ZooModel& model);
absl::StatusOr<v1::Graph> BuildLstmLm(const v1::ZooModel& model);
absl::StatusOr<v1::Graph> BuildGnmt(const v1::ZooModel& model);
absl::StatusOr<v1::Graph> BuildTransformer(const v1::ZooModel& model);
absl::StatusOr<v1::Graph> BuildBert(const v1::ZooModel& model);
absl::StatusOr<v1::Graph> BuildGpt(const v1::ZooModel& model);
absl::StatusOr<v1::Graph> BuildGpt2(const v1::ZooModel& model);
absl::StatusOr<v1::Graph> BuildNcf(const v1::ZooModel& model);

}  // namespace muster::zoo
