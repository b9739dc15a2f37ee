//! What must not compile, each with the error it must fail with. A nightly compiler checks the codes too.
//!
//! Compiled for doc tests only.

/// A task may not borrow what ends with the body of its scope:
///
/// ```compile_fail,E0597
/// filch_pool::scope(|scope| {
///     let short = String::from("gone too soon");
///     let borrowed = &short;
///     scope.spawn(move |_| assert_eq!(borrowed.len(), 13));
/// });
/// ```
///
/// nor what another task of the scope changes:
///
/// ```compile_fail,E0499
/// let mut list = vec![1];
/// filch_pool::scope(|scope| {
///     scope.spawn(|_| list.push(2));
///     scope.spawn(|_| list.push(3));
/// });
/// ```
///
/// nor take what belongs to one thread:
///
/// ```compile_fail,E0277
/// let local = std::rc::Rc::new(1);
/// filch_pool::scope(|scope| scope.spawn(move |_| drop(local)));
/// ```
///
/// A scope does not leave its body:
///
/// ```compile_fail,E0521
/// let mut kept = None;
/// filch_pool::scope(|scope| kept = Some(scope));
/// ```
///
/// nor may a task keep the scope it was given:
///
/// ```compile_fail,E0521
/// let kept = std::sync::Mutex::new(None);
/// filch_pool::scope(|scope| scope.spawn(|scope| *kept.lock().unwrap() = Some(scope)));
/// ```
struct Scopes;

/// An arm of a fork may not borrow what belongs to one thread:
///
/// ```compile_fail,E0277
/// let local = std::cell::Cell::new(1);
/// filch_pool::join(|| local.set(2), || ());
/// ```
///
/// A context cannot be used by an arm of its own fork, go to another thread, or be returned:
///
/// ```compile_fail,E0277
/// fn twice(mut ctx: filch_pool::Ctx<'_>) {
///     ctx.join(|_| { ctx.join(|_| (), |_| ()); }, |_| ());
/// }
/// ```
///
/// ```compile_fail,E0277
/// fn elsewhere(ctx: filch_pool::Ctx<'static>) {
///     std::thread::spawn(move || drop(ctx));
/// }
/// ```
///
/// ```compile_fail,E0277
/// let pool = filch_pool::Pool::builder().threads(1).build().unwrap();
/// pool.run(|ctx| ctx);
/// ```
struct Forks;

/// A spawned task outlives the caller, so it may not borrow from it:
///
/// ```compile_fail,E0373
/// let pool = filch_pool::Pool::builder().threads(1).build().unwrap();
/// let text = String::from("here");
/// let handle = pool.spawn(|| text.len());
/// ```
struct Tasks;
