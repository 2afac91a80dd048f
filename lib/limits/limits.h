// Every limit that a user or an operator can meet, each with its reason. A value beyond one is
// refused with an error that names the limit, the value and its cause. Limits that only our own
// code can meet (a buffer, a retry) are declared where they are used.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace muster::limits {

// Control plane.

// Largest message to a member. A plan with 100,000 chunks is about 4 MB.
inline constexpr int64_t kControlMessageBytesMax = 64 << 20;
// Bytes of a shard in one message. A good size for gRPC messages, whose default limit is 4 MiB.
inline constexpr int64_t kSliceBytesMax = 2 << 20;
// Data in one message of ReadCheckpoint, or of a backup of the store.
inline constexpr int64_t kReadChunkBytesMax = 1 << 20;
// Members attached at the same time. Each takes one stream and a few KB.
inline constexpr int kAttachedMembersMax = 4096;
// Largest message to the coordinator. A slice is 2 MiB, a report is smaller.
inline constexpr int64_t kRequestBytesMax = 4 << 20;
// Coordinator threads for blocking calls: creates, downloads, saves, shards, and short ones.
inline constexpr int kServerThreadsMax = 1024;
// Open calls of one connection. kShardThreadsMax is added to it, one for each shard of a ps.
inline constexpr int kStreamsOfConnectionMax = 128;

// The coordinator's port, for clients that have not authenticated.

// Coordinator memory. Above it only connections that have not recently begun many calls may begin
// calls, and the connections with the most memory for messages are closed.
inline constexpr int64_t kResidentBytesMax = 768 << 20;
inline constexpr int kConnectionsMax = kAttachedMembersMax + 1024;
// Connections to --health. A probe holds one for a moment.
inline constexpr int kHealthConnectionsMax = 160;
// --connection_age. After it a client with a certificate has to authenticate again.
inline constexpr absl::Duration kConnectionAgeMax = absl::Hours(1);
// New connections per second. At this rate 4,096 members reconnect in 17 s.
inline constexpr double kConnectionsPerSecond = 200;
// Open calls of all connections, some 10 KB each. Calls of clients with a certificate, except
// submitters', do not count.
inline constexpr int kCallsOpenMax = 16384;
// Calls that a new connection may begin at once.
inline constexpr int kCallsOfNewConnectionMax = 128;
// Calls per second that a connection may begin beyond those that the server ends. Two slow cores
// can clear up after 64 clients at this rate.
inline constexpr double kCallsOfConnectionPerSecond = 50;
// Ended calls per second, over all connections, that give their credit back to the connection.
// Above this rate an ended call gives no credit back at once.
inline constexpr double kCallsEndedPerSecond = 4000;

// The calls themselves.

inline constexpr int kCreateCallsMax = 64;
// Model files being uploaded at the same time. A disk cannot serve many more.
inline constexpr int kModelUploadCallsMax = 8;
// An uploaded model file. Larger ones are better copied to where the coordinator can read them.
inline constexpr int64_t kModelUploadBytesMax = int64_t{64} << 30;
// Models imported at the same time. Each import holds its model's values.
inline constexpr int kModelImportsMax = 2;
// Memory of a data set that the coordinator checks. Only workers check larger data.
inline constexpr int64_t kDataCheckBytesMax = 256 << 20;
// Downloads at the same time. A disk cannot serve more.
inline constexpr int kDownloadCallsMax = 32;
inline constexpr int kSaveCallsMax = 64;
// WriteShard calls being read, and as many ReadShard calls.
inline constexpr int kShardCallsMax = 256;
// Open watch calls. They hold no thread.
inline constexpr int kWatchCallsMax = 1024;
// Wait for the first message of a stream, which says what it is about.
inline constexpr absl::Duration kFirstMessageMax = absl::Seconds(10);
// Time in which a stream's client neither sends nor reads a message.
inline constexpr absl::Duration kStreamStallMax = absl::Minutes(1);
// Longest back-off of a member between two attempts to reach the coordinator.
inline constexpr absl::Duration kAttachBackoffMax = absl::Seconds(2);
// Names kept so that a replaced process is recognised when it comes back.
inline constexpr int kMembersRememberedMax = 4 * kAttachedMembersMax;
inline constexpr int kPageSizeDefault = 50;
inline constexpr int kPageSizeMax = 500;
inline constexpr int kRequestIdBytesMax = 64;
// Jobs in the queue, one row each. The limit stops a runaway script.
inline constexpr int kJobsQueuedMax = 10000;
// --ended_jobs_keep. Each takes some KB, and a starting coordinator reads all of them.
inline constexpr int64_t kEndedJobsKept = 10000;
// --ended_jobs_ttl.
inline constexpr absl::Duration kEndedJobsKeptFor = absl::Hours(30 * 24);
// Events kept per job. A watcher is told how many are gone.
inline constexpr int kJobEventsKeptMax = 1000;
// Events in one message of WatchJob.
inline constexpr int kWatchEventsMax = 500;
// Jobs in one message of WatchJobs.
inline constexpr int kWatchedJobsMax = 500;
inline constexpr int64_t kSelectorBytesMax = 4096;
// Points per series of metrics. The default is a screen's width.
inline constexpr int kMetricPointsDefault = 1000;
inline constexpr int kMetricPointsMax = 10000;
// Log kept by a member: some 2,000 lines.
inline constexpr int64_t kMemberLogBytesMax = 256 << 10;
// Wait for a member's answer. It holds a server thread.
inline constexpr absl::Duration kMemberLogWaitMax = absl::Seconds(5);
inline constexpr int kMemberLogCallsMax = 32;
inline constexpr int kTraceStepsMax = 1000;
inline constexpr absl::Duration kTraceTimeoutDefault = absl::Minutes(1);
inline constexpr absl::Duration kTraceTimeoutMax = absl::Minutes(10);
// Wait for a member to start recording, and to report the recording.
inline constexpr absl::Duration kTraceTellMax = absl::Seconds(10);
// Events in the traces of all members of a job: some 10 MB on the wire, 60 MB in the coordinator.
inline constexpr int64_t kTracedEventsMax = 1 << 18;
// Events in the trace of one member, which takes 6 MB there.
inline constexpr int64_t kTracedEventsOfMemberMax = 1 << 16;
// Traces recorded at the same time, of different jobs.
inline constexpr int kTracesMax = 4;
// Coordinator: changes that wait for the disk. Above it reports only renew leases, and members
// repeat them.
inline constexpr int kChangesQueuedMax = 4096;
// A user's wait for the store's disk. The CLI's calls have 15 s.
inline constexpr absl::Duration kChangeWaitMax = absl::Seconds(10);
// Step records that a worker holds while the coordinator is away, about 5 MB; also the records of
// one job that wait in the coordinator.
inline constexpr int kStepRecordsHeldMax = 65536;
// Records in one report, which stays below kRequestBytesMax.
inline constexpr int kStepRecordsReportedMax = 16384;
// Links that a worker reports. The coordinator keeps some 300 bytes of each.
inline constexpr int kLinksReportedMax = 128;

// Jobs.

// Size of a job's graph. The plan's 2^20 chunks take 25 MB more in the same message, its job file
// 1 MiB.
inline constexpr int64_t kGraphBytesMax = kControlMessageBytesMax / 2;
// Size of a job spec. The store keeps it, and every watcher receives it.
inline constexpr int64_t kSpecBytesMax = 1 << 20;
// Length of a name. With "-" and a number it must fit into a Kubernetes label, which holds 63
// bytes.
inline constexpr int kNameBytesMax = 40;
// Per job.
inline constexpr int64_t kLabelsMax = 64;
inline constexpr int64_t kAnnotationBytesMax = 64 << 10;
inline constexpr int64_t kBatchSizeMax = 1 << 20;
// Steps of a job. The positions of its samples, which are int64, must not overflow.
inline constexpr int64_t kStepsMax = 1'000'000'000'000;
// Workers of a job. A rank has 16 bits on the wire, which is more than enough.
inline constexpr int kWorkersMax = 1024;
inline constexpr int kPsMax = 1024;
// Devices of a worker that share a copy of a model.
inline constexpr int kTensorParallelMax = 64;
// Per ps.
inline constexpr int kShardThreadsMax = 256;
inline constexpr int64_t kChunkBytesMin = 1 << 10;
inline constexpr int64_t kChunkBytesDefault = 4 << 20;
// Largest chunk. A larger payload does not fit into any cache.
inline constexpr int64_t kChunkBytesMax = 64 << 20;
// Per job.
inline constexpr int64_t kChunksMax = 1 << 20;
inline constexpr int64_t kParametersMax = 65536;
inline constexpr int64_t kParameterElementsMax = int64_t{1} << 40;
inline constexpr int64_t kPathBytesMax = 4096;
// Samples of data.linear, 8 bytes each. More samples do not improve a line.
inline constexpr int64_t kLinearSamplesMax = int64_t{1} << 26;
// Samples of data.synthetic. They are generated on demand, so they cost no memory.
inline constexpr int64_t kSyntheticSamplesMax = int64_t{1} << 40;
// Positions of a job that the weights of a mixture share out. A part needs one.
inline constexpr int64_t kMixtureSlots = 65536;
// data.shuffle.block.window_blocks. With blocks of 8 MiB a window is 128 MiB.
inline constexpr int64_t kWindowBlocksDefault = 16;
// Inputs that data.npy can fill, with one file each.
inline constexpr int kGraphInputsMax = 64;
// Length of a name in a model that a job file mentions.
inline constexpr int kTensorNameBytesMax = 256;
// Patterns of each kind in model.onnx.
inline constexpr int kOnnxPatternsMax = 1024;

// Queues.

// Messages to a shard or exchange thread, and directives that wait for a member's stream.
inline constexpr int kMailboxMessagesMax = 1024;
// Worker: gradients being sent, except over shared memory. More would only queue, where later ones
// cannot overtake.
inline constexpr int64_t kInflightBytesMax = 512 << 10;
inline constexpr int kPrefetchBatchesMax = 4;
// Events in a trace file: 25 MB, as much as a person can look at.
inline constexpr int64_t kTraceEventsMax = 1 << 18;

// Waits. An error after one of these says what was awaited.

// Wait for the shards of a plan, or a neighbour in a ring. Longer than a transport takes to try all
// addresses of one, 5 s each.
inline constexpr absl::Duration kHelloWaitMax = absl::Minutes(1);
// Wait for the values of a step. A last resort: the transport or the coordinator notices a lost
// peer much earlier, and others may be slow.
inline constexpr absl::Duration kAnswerWaitMax = absl::Minutes(10);
// Wait for one step's gradients among the devices of a node; usually milliseconds.
inline constexpr absl::Duration kReductionWaitMax = absl::Minutes(10);
// Wait for a call that reads or writes a shard, besides the time for its bytes. A write ends when
// the slowest shard is written.
inline constexpr absl::Duration kCheckpointCallMax = absl::Minutes(10);
// A connection that carries a checkpoint more slowly than this counts as broken.
inline constexpr int64_t kCheckpointBytesPerSecondMin = 1 << 20;
// Wait for the last transfers of a released shard, which take milliseconds, and for its peers to
// leave.
inline constexpr absl::Duration kReleaseWaitMax = absl::Minutes(1);

}  // namespace muster::limits
