//! What each command does: connects where it must, asks, shows the answer, and says how it ended.

mod cert;
mod cluster;
mod dev;
mod dlq;
mod enqueue;
mod files;
mod lines;
mod look;
mod process;
mod queues;
mod receive;
mod refusal;
mod remote;
mod server;
mod settle;
mod stop;
mod worker;

use crate::cli::inspect::InspectArgs;
use crate::cli::messages::OneMessageArgs;
use crate::cli::{Cli, ClusterCommand, Command, Format, Remote, With};
use crate::exit::{Exit, Failure, Outcome};
use crate::screen::Screen;
use clap::{Args, CommandFactory};
use overtake_client::{Client, ClientError, ErrorCode};

/// Runs one command and says how it ended.
pub fn command(command: Command) -> Exit {
    let outcome = dispatch(command);
    outcome.unwrap_or_else(|failure| {
        Screen::new(Format::Table).failure(&failure);
        failure.exit
    })
}

fn dispatch(command: Command) -> Outcome {
    match command {
        Command::Dev(args) => server::dev(args),
        Command::Serve(args) => server::serve(args),
        Command::Gateway(args) => server::gateway(&args),
        Command::Cert(command) => cert::run(command),
        Command::Config(command) => server::config(command),
        Command::Completions(args) => completions(args.shell),
        Command::Queue(command) => queues::run(command),
        Command::Enqueue(with) => ask(with, enqueue::run),
        Command::Receive(with) => ask(with, receive::run),
        Command::Ack(with) => ask(with, settle::ack),
        Command::Extend(with) => ask(with, settle::extend),
        Command::Release(with) => ask(with, settle::release),
        Command::Stats(with) => ask(with, look::stats),
        Command::Peek(with) => ask(with, look::peek),
        Command::Inspect(args) => inspect(args),
        Command::Cancel(with) => ask(with, look::cancel),
        Command::Dlq(command) => dlq::run(command),
        Command::Cluster(command) => match command {
            ClusterCommand::Status(with) => ask(with, look::cluster),
            ClusterCommand::Add(with) => ask(with, cluster::add),
            ClusterCommand::Drain(with) => ask(with, cluster::drain),
            ClusterCommand::Remove(with) => ask(with, cluster::remove),
            ClusterCommand::Replace(with) => ask(with, cluster::replace),
            ClusterCommand::Rebalance(with) => ask(with, cluster::rebalance),
        },
    }
}

/// A connected command.
struct Session {
    client: Client,
    remote: Remote,
    screen: Screen,
}

impl Session {
    /// The client's error as this command's failure.
    fn failure(&self, error: ClientError) -> Failure {
        remote::failure(&error, &self.remote.server)
    }

    /// The error of a request that only looks: it changed nothing, whatever became of it.
    fn read_failure(&self, error: ClientError) -> Failure {
        remote::read_failure(&error, &self.remote.server)
    }

    /// The error of a command whose queue it would help to create.
    fn failure_of_queue(&self, error: ClientError, queue: &str) -> Failure {
        let missing = is_no_queue(&error);
        let mut failure = self.failure(error);
        if missing {
            failure.message.push_str(&format!("; create it with `overtake queue create {queue}`"));
        }
        failure
    }
}

/// Connects, runs a command, and says goodbye to the server, so that it ends what the command left waiting.
fn ask<T: Args>(with: With<T>, run: impl AsyncFnOnce(&Session, T) -> Outcome) -> Outcome {
    let With { args, remote } = with;
    let screen = Screen::new(remote.output);
    let outcome = runtime()?.block_on(async {
        let client = remote::connect(&remote.server).await?;
        let session = Session { client, screen, remote };
        let outcome = run(&session, args).await;
        session.client.close().await;
        outcome
    });
    // Told in the form that was asked for.
    outcome.map_err(|failure| {
        screen.failure(&failure);
        Failure::silent(failure.exit)
    })
}

/// One message of a server, or the files of a data folder.
fn inspect(args: InspectArgs) -> Outcome {
    let InspectArgs { files, queue, id, remote } = args;
    match (files, queue, id) {
        (Some(command), ..) => files::run(command),
        (None, Some(queue), Some(id)) => {
            ask(With { args: OneMessageArgs { queue, id }, remote }, look::inspect)
        }
        // clap asks for both.
        _ => Err(Failure::usage("inspect needs a queue and the id of a message, or a command")),
    }
}

/// True where the server does not know the queue; a message that it does not know is another thing.
fn is_no_queue(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(refusal)
        if refusal.code == ErrorCode::NotFound && refusal.field.as_deref() == Some("queue"))
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot start: {error}")))
}

fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "overtake", &mut script);
    Screen::new(Format::Table).print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Ok)
}
