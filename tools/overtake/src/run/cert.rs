//! `cert`: makes the cluster's authority, and issues what it issues.

use crate::certificates::{CertificateError, Files, issue_client, issue_node, make_authority};
use crate::cli::Format;
use crate::cli::cert::{CertCommand, ClientArgs, InitArgs, NodeArgs};
use crate::exit::{Exit, Failure, Outcome};
use crate::screen::Screen;
use overtake_base::NodeId;

/// Carries it out.
pub fn run(command: CertCommand) -> Outcome {
    match command {
        CertCommand::Init(args) => init(&args),
        CertCommand::Node(args) => node(&args),
        CertCommand::Client(args) => client(&args),
    }
}

fn init(args: &InitArgs) -> Outcome {
    let folder = &args.folder.cert_dir;
    let cluster = make_authority(folder, args.days).map_err(failure)?;
    let files = Files::authority(folder);
    Screen::new(Format::Table).print(&format!(
        "authority of cluster {cluster:032x}\n  {}   every node and client needs a copy\n  {}   issues certificates: \
         keep it where no node runs\nnext: overtake cert node 1 --cert-dir {}\n",
        files.certificate.display(),
        files.key.display(),
        folder.display(),
    ))?;
    Ok(Exit::Ok)
}

fn node(args: &NodeArgs) -> Outcome {
    let folder = &args.folder.cert_dir;
    let (files, name) = issue_node(folder, NodeId(args.id), &args.host, args.days).map_err(failure)?;
    Screen::new(Format::Table).print(&format!(
        "{name}\n  {}\n  {}   for this node only\nbring both and {} to the node's --cert-dir\n",
        files.certificate.display(),
        files.key.display(),
        Files::authority(folder).certificate.display(),
    ))?;
    Ok(Exit::Ok)
}

fn client(args: &ClientArgs) -> Outcome {
    let folder = &args.folder.cert_dir;
    let files = issue_client(folder, &args.name, args.days).map_err(failure)?;
    Screen::new(Format::Table).print(&format!(
        "  {}\n  {}   for this client only\nuse them with --ca {} --cert and --key\n",
        files.certificate.display(),
        files.key.display(),
        Files::authority(folder).certificate.display(),
    ))?;
    Ok(Exit::Ok)
}

fn failure(error: CertificateError) -> Failure {
    Failure::new(Exit::Failed, error.to_string())
}
