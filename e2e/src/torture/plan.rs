//! The steps of a run, which its seed determines: edits of policies, and faults of programs, files and networks.

use std::fmt;
use std::time::Duration;

use super::history::Verdict;
use super::random::Random;
use crate::Fault;

/// The number of policies of a run.
pub const POLICIES: u64 = 3;
/// The versions of the operators at the start of a run: a run begins in the middle of an upgrade, after that of the kinds.
pub const OPERATOR_VERSIONS: [Version; 2] = [Version::This, Version::Other];
/// The number of replicas at the start of a run.
pub const REPLICAS: u64 = 3;
/// The version of the replicas at the start of a run.
pub const REPLICA_VERSION: Version = Version::Other;

/// The version of a program of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The version of this repository.
    This,
    /// The version with which it is mixed: the previous one, unless the run has other programs.
    Other,
}

impl Version {
    /// Returns the version that replaces this one.
    #[must_use]
    pub const fn next(self) -> Self {
        match self {
            Self::This => Self::Other,
            Self::Other => Self::This,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::This => "this version",
            Self::Other => "the other version",
        })
    }
}

/// The program of a spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// CEL that denies.
    CelDenies,
    /// CEL that denies, behind a mutating webhook.
    MutatingCelDenies,
    /// Rego that denies.
    RegoDenies,
    /// A module that denies.
    WasmDenies,
    /// CEL that allows, and changes nothing.
    CelAllows,
    /// CEL that allows, and adds its marker to the object.
    CelAllowsMarked,
    /// CEL that does not compile. The operator's admission webhook refuses the spec.
    SyntaxError,
    /// A module that the registry does not have.
    MissingModule,
    /// Bytes that are no module.
    BrokenModule,
    /// A module that refuses its settings.
    RefusedSettings,
}

impl Program {
    #[must_use]
    pub const fn verdict(self) -> Verdict {
        match self {
            Self::CelDenies | Self::MutatingCelDenies | Self::RegoDenies | Self::WasmDenies => Verdict::Denies,
            Self::CelAllows => Verdict::Allows,
            Self::CelAllowsMarked => Verdict::AllowsMarked,
            Self::SyntaxError | Self::MissingModule | Self::BrokenModule | Self::RefusedSettings => Verdict::Fails,
        }
    }
}

/// The spec of a policy or an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// The number of the spec. It is unique in a run.
    pub number: u64,
    pub program: Program,
}

impl Spec {
    /// Returns the first spec of a policy.
    #[must_use]
    pub const fn first(policy: u64) -> Self {
        Self { number: policy, program: Program::CelDenies }
    }

    /// Returns the text that the answers of this spec contain.
    #[must_use]
    pub fn marker(&self) -> String {
        format!("spec-{}", self.number)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.marker(), self.program)
    }
}

/// A program that a fault concerns. The number is reduced to the number of running programs of the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Operator(u64),
    Replica(u64),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator(number) => write!(f, "operator {number}"),
            Self::Replica(number) => write!(f, "replica {number}"),
        }
    }
}

/// A step of a run. A fault with a duration lasts while the next steps run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Writes a spec of a policy.
    Edit {
        policy: u64,
        spec: Spec,
    },
    /// Requests a rollback by this number of generations.
    RollBack {
        policy: u64,
        by: u64,
    },
    /// Creates an experiment of a policy, and starts its preview.
    StartExperiment {
        policy: u64,
        spec: Spec,
    },
    CommitExperiment {
        policy: u64,
    },
    DeleteExperiment {
        policy: u64,
    },
    /// Changes the number of replicas.
    Scale {
        replicas: u64,
    },
    /// Changes the version of the policy server to the next one, by a rolling update.
    ChangeServerVersion,
    /// Terminates an operator (SIGTERM), and starts it again in its next version.
    ChangeOperatorVersion {
        /// The number of the operator, as in [`Target`].
        operator: u64,
    },
    /// Kills a process (SIGKILL), which is then started again.
    Kill {
        target: Target,
    },
    /// Ends a process in an orderly way: deletes the pod of a replica, or terminates an operator (SIGTERM).
    End {
        target: Target,
    },
    /// Freezes a process (SIGSTOP) for this time.
    Freeze {
        target: Target,
        time: Duration,
    },
    /// Injects a fault into the network between a process and the API server for this time.
    Partition {
        target: Target,
        fault: Fault,
        time: Duration,
    },
    /// Starts a process again, with a clock that differs by this number of seconds.
    ShiftClock {
        target: Target,
        seconds: i32,
    },
    RestartApiServer,
    RestartEtcd,
    FreezeEtcd {
        time: Duration,
    },
    /// Damages a file of the shared cache. The number selects the file and the kind of the damage.
    CorruptCache {
        number: u64,
    },
    /// Makes the registry unreachable for the replicas for this time.
    CutRegistry {
        fault: Fault,
        time: Duration,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edit { policy, spec } => write!(f, "write {spec} to policy {policy}"),
            Self::RollBack { policy, by } => write!(f, "roll back policy {policy} by {by} generations"),
            Self::StartExperiment { policy, spec } => write!(f, "preview {spec} for policy {policy}"),
            Self::CommitExperiment { policy } => write!(f, "commit the experiment of policy {policy}"),
            Self::DeleteExperiment { policy } => write!(f, "delete the experiment of policy {policy}"),
            Self::Scale { replicas } => write!(f, "scale to {replicas} replicas"),
            Self::ChangeServerVersion => f.write_str("change the version of the replicas"),
            Self::ChangeOperatorVersion { operator } => write!(f, "change the version of operator {operator}"),
            Self::Kill { target } => write!(f, "kill {target}"),
            Self::End { target } => write!(f, "end {target}"),
            Self::Freeze { target, time } => write!(f, "freeze {target} for {time:?}"),
            Self::Partition { target, fault, time } => write!(f, "network of {target}: {fault:?} for {time:?}"),
            Self::ShiftClock { target, seconds } => write!(f, "start {target} again, its clock shifted by {seconds} s"),
            Self::RestartApiServer => f.write_str("restart the API server"),
            Self::RestartEtcd => f.write_str("restart etcd"),
            Self::FreezeEtcd { time } => write!(f, "freeze etcd for {time:?}"),
            Self::CorruptCache { number } => write!(f, "damage file {number} of the cache"),
            Self::CutRegistry { fault, time } => write!(f, "network of the registry: {fault:?} for {time:?}"),
        }
    }
}

/// A step with its number and the time between the end of the previous step and its begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedStep {
    /// The number of the step, from 1.
    pub number: usize,
    pub pause: Duration,
    pub step: Step,
}

impl fmt::Display for PlannedStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.number, self.step)
    }
}

/// The kind of a step.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Edit,
    RollBack,
    StartExperiment,
    CommitExperiment,
    DeleteExperiment,
    Scale,
    ChangeServerVersion,
    ChangeOperatorVersion,
    Kill,
    End,
    Freeze,
    Partition,
    ShiftClock,
    RestartApiServer,
    RestartEtcd,
    FreezeEtcd,
    CorruptCache,
    CutRegistry,
}

/// The kinds of steps with their weights. Failures without a decision are judged only outside of outages, so the faults that
/// cause outages are rare.
const KINDS: [(u64, Kind); 18] = [
    (38, Kind::Edit),
    (8, Kind::RollBack),
    (6, Kind::StartExperiment),
    (4, Kind::CommitExperiment),
    (3, Kind::DeleteExperiment),
    (4, Kind::Scale),
    (2, Kind::ChangeServerVersion),
    (2, Kind::ChangeOperatorVersion),
    (7, Kind::Kill),
    (5, Kind::End),
    (5, Kind::Freeze),
    (6, Kind::Partition),
    (2, Kind::ShiftClock),
    (1, Kind::RestartApiServer),
    (1, Kind::RestartEtcd),
    (1, Kind::FreezeEtcd),
    (4, Kind::CorruptCache),
    (4, Kind::CutRegistry),
];

/// The programs of written specs with their weights.
const PROGRAMS: [(u64, Program); 10] = [
    (6, Program::CelDenies),
    (2, Program::MutatingCelDenies),
    (4, Program::RegoDenies),
    (6, Program::WasmDenies),
    (2, Program::CelAllows),
    (4, Program::CelAllowsMarked),
    (1, Program::SyntaxError),
    (2, Program::MissingModule),
    (1, Program::BrokenModule),
    (1, Program::RefusedSettings),
];

/// The faults of a network with their weights.
const NETWORK_FAULTS: [(u64, Fault); 3] =
    [(2, Fault::Hang), (2, Fault::Cut), (1, Fault::Delay(Duration::from_millis(300)))];

/// The endless steps of a seed. The first steps are the same, however many are taken.
#[derive(Debug, Clone)]
pub struct Plan {
    random: Random,
    steps: usize,
    specs: u64,
}

impl Plan {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // The first specs of the policies have the first numbers.
        Self { random: Random::new(seed), steps: 0, specs: POLICIES }
    }

    fn spec(&mut self) -> Spec {
        self.specs += 1;
        Spec { number: self.specs - 1, program: self.random.choose(&PROGRAMS) }
    }

    fn policy(&mut self) -> u64 {
        self.random.within(0..=POLICIES - 1)
    }

    /// Returns the number of a program, which is reduced to the number of running programs.
    fn number(&mut self) -> u64 {
        self.random.within(0..=99)
    }

    fn target(&mut self) -> Target {
        let number = self.number();
        self.random.choose(&[(1, Target::Operator(number)), (1, Target::Replica(number))])
    }

    /// Returns the duration of a fault. Some are longer than the lease of a leader (15 s).
    fn time(&mut self) -> Duration {
        let seconds = self.random.choose(&[(4, 2), (3, 5), (1, 20)]);
        Duration::from_secs(seconds)
    }

    fn step(&mut self) -> Step {
        match self.random.choose(&KINDS) {
            Kind::Edit => Step::Edit { policy: self.policy(), spec: self.spec() },
            Kind::RollBack => Step::RollBack { policy: self.policy(), by: self.random.within(1..=4) },
            Kind::StartExperiment => Step::StartExperiment { policy: self.policy(), spec: self.spec() },
            Kind::CommitExperiment => Step::CommitExperiment { policy: self.policy() },
            Kind::DeleteExperiment => Step::DeleteExperiment { policy: self.policy() },
            Kind::Scale => Step::Scale { replicas: self.random.within(2..=REPLICAS + 1) },
            Kind::ChangeServerVersion => Step::ChangeServerVersion,
            Kind::ChangeOperatorVersion => Step::ChangeOperatorVersion { operator: self.number() },
            Kind::Kill => Step::Kill { target: self.target() },
            Kind::End => Step::End { target: self.target() },
            Kind::Freeze => Step::Freeze { target: self.target(), time: self.time() },
            Kind::Partition => {
                Step::Partition { target: self.target(), fault: self.random.choose(&NETWORK_FAULTS), time: self.time() }
            }
            Kind::ShiftClock => {
                let seconds = self.random.choose(&[(1, -60), (1, 0), (1, 60)]);
                Step::ShiftClock { target: self.target(), seconds }
            }
            Kind::RestartApiServer => Step::RestartApiServer,
            Kind::RestartEtcd => Step::RestartEtcd,
            Kind::FreezeEtcd => Step::FreezeEtcd { time: self.time() },
            Kind::CorruptCache => Step::CorruptCache { number: self.random.within(0..=999) },
            Kind::CutRegistry => Step::CutRegistry { fault: self.random.choose(&NETWORK_FAULTS), time: self.time() },
        }
    }
}

impl Iterator for Plan {
    type Item = PlannedStep;

    fn next(&mut self) -> Option<PlannedStep> {
        self.steps += 1;
        let pause = Duration::from_millis(self.random.within(100..=2500));
        Some(PlannedStep { number: self.steps, pause, step: self.step() })
    }
}

#[cfg(test)]
mod tests;
